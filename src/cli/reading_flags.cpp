#include "cli/reading_flags.h"

#include "base/error.h"

namespace outrider {

void ReadingFlags::define(CLI::App& verb) {
  define_without_mtp(verb);
  verb.add_option("--mtp", mtp_, "the MTP head: auto, on, off, or where it lies: a directory or file (auto)");
}

void ReadingFlags::define_without_mtp(CLI::App& verb) {
  verb.add_option("--layout", layout_, "of a checkpoint whose files contradict themselves: hf or mlx")
      ->check(CLI::IsMember({"hf", "mlx"}));
  verb.add_option("--mtp-hidden", mtp_hidden_, "the hidden the head was trained on: pre_norm or post_norm")
      ->check(CLI::IsMember({"pre_norm", "post_norm"}));
}

SourceOptions ReadingFlags::options() const {
  SourceOptions options;
  if (!layout_.empty()) options.layout = layout_ == "hf" ? TrunkLayout::hf : TrunkLayout::mlx;
  if (!mtp_hidden_.empty()) options.mtp_hidden = mtp_hidden_ == "pre_norm" ? HiddenTap::pre_norm : HiddenTap::post_norm;
  if (mtp_ == "off") {
    options.mtp = MtpUse::off;
    if (options.mtp_hidden)
      throw Error(ErrorKind::usage,
                  fmt::format("--mtp off and --mtp-hidden {} are both given, and no head is read", mtp_hidden_),
                  "leave one of them out");
  } else if (mtp_ != "auto") {
    options.mtp = MtpUse::on;
    if (mtp_ != "on") options.mtp_path = mtp_;
  }
  return options;
}

std::vector<std::string> ReadingFlags::words() const {
  std::vector<std::string> out;
  if (!layout_.empty()) out.insert(out.end(), {"--layout", layout_});
  if (!mtp_hidden_.empty()) out.insert(out.end(), {"--mtp-hidden", mtp_hidden_});
  if (mtp_ != "auto") out.insert(out.end(), {"--mtp", mtp_});
  return out;
}

}  // namespace outrider
