#include "layers/gated_delta_net.h"

#include <algorithm>
#include <array>

namespace outrider {

float l2_epsilon(L2Epsilon form, std::int64_t key_width) {
  constexpr double kEpsilon = 1e-6;
  return static_cast<float>(form == L2Epsilon::hf ? kEpsilon : kEpsilon * static_cast<double>(key_width));
}

AlignedBuffer conv_by_tap(const AlignedBuffer& by_channel, std::int64_t taps) {
  AlignedBuffer by_tap(by_channel.size(), MemoryPart::weights);
  const std::span<const float> from = by_channel.as<float>();
  const std::span<float> to = by_tap.as<float>();
  const auto width = static_cast<std::size_t>(taps), channels = from.size() / width;
  for (std::size_t c = 0; c < channels; ++c)
    for (std::size_t j = 0; j < width; ++j) to[j * channels + c] = from[c * width + j];
  return by_tap;
}

void GatedDeltaNet::forward(const Step& step, const RaggedBatch& batch, const RecurrentLayout& layout,
                            std::int64_t layer, const Norm& input_norm, Tensor h) const {
  auto& [device, arena, faults, clamps] = step;
  Arena::Scope scope(arena);
  const Tensor p = arena.tensor(batch.size(), in_proj_qkv.n());
  const Tensor z = arena.tensor(batch.size(), in_proj_z.n());
  const Tensor b = arena.tensor(batch.size(), in_proj_b.n());
  const Tensor a = arena.tensor(batch.size(), in_proj_a.n());
  device.norm_linear(h, input_norm.data(), input_norm.eps,
                     std::array{in_proj_qkv.part(p), in_proj_z.part(z), in_proj_b.part(b), in_proj_a.part(a)}, arena,
                     faults);
  const DeltaShape shape = {.conv = conv1d.as<float>().data(),
                            .a_log = A_log.as<float>().data(),
                            .dt_bias = dt_bias.as<float>().data(),
                            .l2_eps = l2_epsilon(l2, layout.key_width)};
  device.gated_delta(shape, batch, layout, layer, p, a, b);
  const Tensor y = p.columns(p.width - z.width, z.width);
  device.gated_norm_linear(y, z, norm.data(), layout.value_width, norm.eps, out_proj.part(h, &h), arena, faults);
}

std::size_t GatedDeltaNet::scratch_bytes(const Device& device, std::int64_t tokens) const {
  std::size_t projections = 0;
  std::uint32_t forms = 0;
  for (const Linear* linear : {&in_proj_qkv, &in_proj_z, &in_proj_b, &in_proj_a}) {
    projections += tensor_bytes(tokens, linear->n());
    forms |= input_form(linear->weight.view);
  }
  const std::size_t in = device.linear_scratch_bytes(LinearOperation::norm_linear, tokens, in_proj_qkv.k(), forms);
  const std::size_t out = device.linear_scratch_bytes(LinearOperation::gated_norm_linear, tokens, out_proj.k(),
                                                      input_form(out_proj.weight.view));
  return projections + std::max(in, out);
}

}  // namespace outrider
