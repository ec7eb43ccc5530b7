// outrider tokenize MODEL [TEXT|-]: ids and pieces of a text.
#include "cli/verb.h"
#include "engine/model_text_source.h"
#include "weights/model_source.h"

namespace outrider {
namespace {

class TokenizeVerb : public Verb {
 public:
  CLI::App* define(CLI::App& program) override {
    CLI::App* verb = program.add_subcommand("tokenize", "ids and pieces of a text");
    verb->add_option("model,--model", model_, "directory, .gguf file, or local model");
    text_option_ = verb->add_option("text,--text", text_, "the text; - or none: read from stdin");
    verb->add_flag("--add-special", add_special_, "with the tokens the tokenizer adds (such as BOS)");
    return verb;
  }

  int run(const GlobalOptions& global) override {
    const std::filesystem::path path = resolve_model(required_model(model_));
    if (text_option_->count() == 0 || text_ == "-") text_ = read_stdin("text");
    const std::optional<ModelText> text = load_text_of(path);
    if (!text)
      throw Error(ErrorKind::data, fmt::format("{} has no tokenizer", path.string()), "put its tokenizer.json there");
    const std::vector<std::int32_t> ids =
        text->tokenizer.encode(text_, add_special_ ? AddSpecial::yes : AddSpecial::no, ParseSpecial::yes);
    std::vector<std::string> pieces;
    for (const std::int32_t id : ids) pieces.push_back(text->tokenizer.piece(id));
    if (global.form != OutputForm::human) {
      write_json({{"ids", ids}, {"pieces", pieces}, {"count", ids.size()}});
      return 0;
    }
    std::string lines;
    for (std::size_t i = 0; i < ids.size(); ++i) lines += fmt::format("{:>8}  {}\n", ids[i], pieces[i]);
    write_stdout(lines);
    return 0;
  }

 private:
  std::string model_, text_;
  bool add_special_ = false;
  CLI::Option* text_option_ = nullptr;
};

}  // namespace

std::unique_ptr<Verb> make_tokenize_verb() { return std::make_unique<TokenizeVerb>(); }

}  // namespace outrider
