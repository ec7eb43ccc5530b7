// A GGUF file as a ModelSource.
#include <cmath>
#include <cstring>

#include "weights/file_error.h"
#include "weights/gguf_llama.h"
#include "weights/stored_model.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

class GgufSource final : public StoredModel {
 public:
  GgufSource(const fs::path& path, const GgufImport& import)
      : StoredModel(path), import_(import), file_(path), model_(read_gguf_model(file_)) {
    config_ = model_.config;
    generation_config_ = model_.generation_config;
  }

  std::uint64_t stored_bytes() const override {
    std::uint64_t bytes = 0;
    for (const GgufTensor& tensor : file_.tensors()) bytes += tensor.bytes;
    return bytes;
  }
  bool has(std::string_view tensor) const override { return model_.tensors.contains(tensor); }
  std::vector<NamedShape> tensors() const override {
    std::vector<NamedShape> out;
    for (const auto& [name, found] : model_.tensors)
      out.push_back({name, {found.tensor->dims.rbegin(), found.tensor->dims.rend()}});
    return out;
  }
  std::vector<OpenedFile> weight_files() const override { return file_.files(); }
  MatrixRows rows(std::string_view path, std::int64_t k) const override;
  Values values(std::string_view name) const override;

 private:
  // Decided once per tensor: it reads the tensor's scales.
  FloatType scale_type(const GgufTensor& tensor) const;
  Error not_finite(const GgufTensor& tensor, std::int64_t row) const {
    return tensor_error(path_.string(), tensor.name, fmt::format("a scale of row {} is not finite", row));
  }

  GgufImport import_;
  GgufFile file_;
  GgufModel model_;
  mutable std::mutex types_lock_;
  mutable std::map<std::string, FloatType> types_;
};

FloatType GgufSource::scale_type(const GgufTensor& tensor) const {
  const std::lock_guard guard(types_lock_);
  const auto known = types_.find(tensor.name);
  if (known != types_.end()) return known->second;
  const FloatType type = scale_type_of(tensor.type, file_.bytes(tensor), import_);
  file_.drop(tensor, 0, tensor.bytes);
  types_.emplace(tensor.name, type);
  return type;
}

MatrixRows GgufSource::rows(std::string_view path, std::int64_t) const {
  const std::string name = std::string(path) + ".weight";
  const auto found = model_.tensors.find(name);
  if (found == model_.tensors.end()) throw missing(name);
  const GgufTensor& tensor = *found->second.tensor;
  const std::int64_t heads = found->second.permuted_heads;
  if (tensor.dims.size() != 2)
    throw tensor_error(path_.string(), tensor.name, fmt::format("is {}, not a matrix", shape_text(tensor.dims)));
  const std::int64_t k = tensor.dims[0], n = tensor.dims[1], row_bytes = tensor.row_bytes();
  const std::byte* data = file_.bytes(tensor).data();
  MatrixRows out;
  out.info.n = n;
  out.info.k = k;
  if (is_float(tensor.type)) {
    out.info.kind = PackedKind::dense;
    out.info.type = float_type_of(tensor.type);
    out.dense = [=](std::int64_t row, std::byte* values) {
      std::memcpy(values, data + source_row(row, n, heads) * row_bytes, static_cast<std::size_t>(row_bytes));
    };
  } else if (tensor.type == GgufType::MXFP4) {
    out.info.kind = PackedKind::e2m1;
    out.info.bits = 4;
    out.info.group = kGgufGroup;
    out.e2m1 = [=, this, &tensor, fp4 = out.fp4](std::int64_t row, std::uint8_t* codes, std::uint8_t* scales) {
      const std::span<std::uint8_t> all(codes, static_cast<std::size_t>(k));
      decode_mxfp4_row(data + source_row(row, n, heads) * row_bytes, all, scales);
      if (group_without_values(fp4, all, scales)) throw not_finite(tensor, row);
    };
  } else {
    out.info.kind = PackedKind::affine;
    out.info.type = scale_type(tensor);
    out.info.bits = affine_bits(tensor.type, import_);
    out.info.group = kGgufGroup;
    out.affine = [=, this, &tensor, info = out.info](std::int64_t row, std::uint8_t* codes, std::byte* scales,
                                                     std::byte* biases) {
      if (!decode_row(tensor.type, data + source_row(row, n, heads) * row_bytes, info.type, info.bits,
                      {codes, static_cast<std::size_t>(k)}, scales, biases))
        throw not_finite(tensor, row);
    };
  }
  out.drop = [this, &tensor, row_bytes](std::int64_t begin, std::int64_t end) {
    file_.drop(tensor, static_cast<std::uint64_t>(begin * row_bytes), static_cast<std::uint64_t>(end * row_bytes));
  };
  out.info.has_bias = has(std::string(path) + ".bias");
  return out;
}

StoredModel::Values GgufSource::values(std::string_view name) const {
  const auto found = model_.tensors.find(name);
  if (found == model_.tensors.end()) throw missing(name);
  const GgufTensor& tensor = *found->second.tensor;
  if (!is_float(tensor.type))
    throw tensor_error(path_.string(), tensor.name,
                       fmt::format("is {} (accepted: F32, F16, BF16)", name_of(tensor.type)), kTakeAnother);
  const FloatType type = float_type_of(tensor.type);
  const auto bytes = file_.bytes(tensor);
  const auto count = static_cast<std::int64_t>(bytes.size() / size_of(type));
  Values out{type, {tensor.dims.rbegin(), tensor.dims.rend()}, std::vector<float>(static_cast<std::size_t>(count))};
  // Only vectors (biases) are permuted here; matrices are read by rows().
  const std::int64_t heads = tensor.dims.size() == 1 ? found->second.permuted_heads : 0;
  for (std::int64_t i = 0; i < count; ++i)
    out.values[static_cast<std::size_t>(i)] =
        load_float(bytes.data() + static_cast<std::size_t>(source_row(i, count, heads)) * size_of(type), type);
  file_.drop(tensor, 0, tensor.bytes);
  return out;
}

}  // namespace

std::unique_ptr<StoredModel> open_gguf_model(const fs::path& file, const GgufImport& import) {
  return std::make_unique<GgufSource>(file, import);
}

}  // namespace outrider
