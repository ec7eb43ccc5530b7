// What a loader decided about a checkpoint whose family exists in several layouts (models.md 1.12, 3.3, 4.2, 4.3), what
// the user may say about it, and how each of these is spelled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

// How the trunk is stored: `hf` has conv1d as [C, 1, W], `mlx` as [C, W, 1].
enum class TrunkLayout : std::uint8_t { hf, mlx };
// What norm weights mean: zero-centred ones are stored as w and multiply by 1 + w.
enum class NormCentre : std::uint8_t { zero, one };
// Where the 1e-6 of the delta rule's l2 norm stands: added to the sum of squares (hf), or Dk times as large because it
// was added to their mean (mlx: mlx-lm before 0.32).
enum class L2Epsilon : std::uint8_t { hf, mlx };
// Which hidden of the target the MTP head was trained on: the last layer's output before or after the final norm. A
// fact of the checkpoint, never inferred.
enum class HiddenTap : std::uint8_t { pre_norm, post_norm };

std::string_view name_of(TrunkLayout layout);  // "hf", "mlx"
std::string_view name_of(NormCentre norms);    // "zero_centred", "one_centred"
std::string_view name_of(L2Epsilon eps);       // "hf", "mlx"
std::string_view name_of(HiddenTap tap);       // "pre_norm", "post_norm"

// What of the MTP head is loaded: a head that can be trusted (automatic), the same or an error (on), nothing (off).
enum class MtpUse : std::uint8_t { automatic, on, off };
enum class HeadState : std::uint8_t {
  absent,     // the files hold no tensor of a head
  ready,      // all 15 tensors, and what their norms mean is known
  ambiguous,  // all 15 tensors, but nothing says what their norms mean: not loaded (models.md 4.3)
  off         // there is one, and the user wants none
};
std::string_view name_of(HeadState state);

struct MtpFacts {
  HeadState state = HeadState::absent;
  std::string place;   // file or directory the tensors come from; empty: absent
  std::string detail;  // why it is ambiguous, or where was looked when absent
  NormCentre norms = NormCentre::one;
  HiddenTap tap = HiddenTap::post_norm;
  std::string tap_origin;  // "config.json", "default", ...
};

struct CheckpointFacts {
  TrunkLayout layout = TrunkLayout::hf;
  std::string layout_origin;  // "the shape of conv1d", "--layout", ...
  NormCentre norms = NormCentre::zero;
  L2Epsilon l2_eps = L2Epsilon::hf;
  MtpFacts mtp;
};

// What the user says about a checkpoint; each wins over what the files say, except where models.md refuses.
struct SourceOptions {
  std::optional<TrunkLayout> layout = {};
  MtpUse mtp = MtpUse::automatic;
  std::filesystem::path mtp_path = {};  // a side-car directory or file; empty: the usual places
  std::optional<HiddenTap> mtp_hidden = {};
  std::optional<NormCentre> mtp_norms = {};  // for measuring the readings of an ambiguous head
  // What a layout or hidden means that the files leave nothing to act on: an error, or nothing.
  enum class Idle : std::uint8_t { refused, ignored } idle = Idle::refused;
};

}  // namespace outrider
