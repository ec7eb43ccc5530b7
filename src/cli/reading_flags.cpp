#include "cli/reading_flags.h"

#include "base/error.h"
#include "cli/option_layers.h"

namespace outrider {

void ReadingFlags::define(CLI::App& verb) {
  define_without_mtp(verb);
  mtp_flag_ =
      verb.add_option("--mtp", mtp_, "the MTP head: auto, on, off, or where it lies: a directory or file (auto)");
}

void ReadingFlags::define_without_mtp(CLI::App& verb) {
  layout_flag_ =
      verb.add_option("--layout", layout_, "of a checkpoint whose files contradict themselves: hf or mlx (auto)")
          ->check(CLI::IsMember({kAuto, "hf", "mlx"}));
  hidden_flag_ =
      verb.add_option("--mtp-hidden", mtp_hidden_, "the hidden the head was trained on: pre_norm or post_norm (auto)")
          ->check(CLI::IsMember({kAuto, "pre_norm", "post_norm"}));
}

SourceOptions ReadingFlags::options() const {
  SourceOptions options;
  if (layout_ != kAuto) options.layout = layout_ == "hf" ? TrunkLayout::hf : TrunkLayout::mlx;
  if (mtp_hidden_ != kAuto) options.mtp_hidden = mtp_hidden_ == "pre_norm" ? HiddenTap::pre_norm : HiddenTap::post_norm;
  options.idle =
      is_named(*layout_flag_) || is_named(*hidden_flag_) ? SourceOptions::Idle::refused : SourceOptions::Idle::ignored;
  if (mtp_ == "off") {
    options.mtp = MtpUse::off;
    if (options.mtp_hidden && is_named(*hidden_flag_))
      throw Error(ErrorKind::usage,
                  fmt::format("--mtp off and --mtp-hidden {} are both given, and no head is read", mtp_hidden_),
                  "leave one of them out, or say --mtp-hidden auto");
  } else if (mtp_ != kAuto) {
    options.mtp = MtpUse::on;
    if (mtp_ != "on") options.mtp_path = mtp_;
  }
  return options;
}

bool ReadingFlags::names_head() const {
  return mtp_flag_ != nullptr && is_named(*mtp_flag_) && mtp_ != kAuto && mtp_ != "off";
}

std::vector<std::string> ReadingFlags::words() const {
  std::vector<std::string> out;
  if (layout_ != kAuto) out.insert(out.end(), {"--layout", layout_});
  if (mtp_hidden_ != kAuto) out.insert(out.end(), {"--mtp-hidden", mtp_hidden_});
  if (mtp_ != kAuto) out.insert(out.end(), {"--mtp", mtp_});
  return out;
}

}  // namespace outrider
