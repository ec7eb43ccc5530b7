#include "weights/stored_model.h"

#include <algorithm>
#include <cmath>

#include "weights/file_error.h"

namespace outrider {

namespace fs = std::filesystem;

Error StoredModel::missing(std::string_view tensor) const {
  return tensor_error(place_of(tensor), tensor, "is missing");
}

void StoredModel::mark_used(std::string_view tensor) const {
  const std::lock_guard guard(lock_);
  used_.emplace(tensor);
}

MatrixRows StoredModel::checked_rows(std::string_view path, std::int64_t n, std::int64_t k) const {
  MatrixRows found = rows(path, k);
  const ModuleInfo& info = found.info;
  if ((n >= 0 && info.n != n) || (k >= 0 && info.k != k)) {
    const auto side = [](std::int64_t wanted) { return wanted < 0 ? std::string("any") : fmt::format("{}", wanted); };
    throw tensor_error(place_of(path), std::string(path) + ".weight",
                       fmt::format("is [{}, {}], the config implies [{}, {}]", info.n, info.k, side(n), side(k)));
  }
  for (const std::string_view part : found.parts) mark_used(std::string(path).append(part));
  return found;
}

ModuleInfo StoredModel::module(std::string_view path, std::int64_t n, std::int64_t k) const {
  const ModuleInfo info = checked_rows(path, n, k).info;
  if (info.has_bias) mark_used(std::string(path) + ".bias");
  return info;
}

PackedWeight StoredModel::load_matrix(std::string_view path, std::int64_t n, std::int64_t k, Precision precision) {
  return pack(checked_rows(path, n, k), precision, parallel_);
}

AlignedBuffer StoredModel::load_vector(std::string_view tensor, std::int64_t n) { return load_floats(tensor, {n}); }

AlignedBuffer StoredModel::load_table(std::string_view tensor, std::int64_t n, std::int64_t k) {
  return load_floats(tensor, {n, k});
}

AlignedBuffer StoredModel::load_floats(std::string_view tensor, std::vector<std::int64_t> shape) {
  Values read = values(tensor);
  // MLX stores the taps of a convolution as [n, k, 1].
  if (shape.size() == 2 && read.shape.size() == 3 && read.shape.back() == 1) read.shape.pop_back();
  if (read.shape != shape)
    throw tensor_error(place_of(tensor), tensor,
                       fmt::format("is {}, the config implies {}", shape_text(read.shape), shape_text(shape)));
  for (std::size_t i = 0; i < read.values.size(); ++i)
    if (!std::isfinite(read.values[i]))
      throw tensor_error(place_of(tensor), tensor, fmt::format("value {} is {} (accepted: finite)", i, read.values[i]));
  mark_used(tensor);
  AlignedBuffer out(read.values.size() * sizeof(float), MemoryPart::weights);
  std::copy(read.values.begin(), read.values.end(), out.as<float>().begin());
  return out;
}

std::vector<std::string> StoredModel::unused_tensors() const {
  std::vector<std::string> unused;
  const std::lock_guard guard(lock_);
  for (NamedShape& tensor : tensors())
    if (!used_.contains(tensor.name)) unused.push_back(std::move(tensor.name));
  return unused;
}

Sha256Digest ModelSource::mtp_identity() const { OUTRIDER_CHECK(false, "{} has no MTP head", path().string()); }

std::unique_ptr<StoredModel> open_stored_model(const fs::path& path, const GgufImport& import,
                                               const SourceOptions& options) {
  std::error_code failed;
  if (!fs::exists(path, failed))
    throw Error(ErrorKind::data, fmt::format("{} does not exist", path.string()),
                "a model is a directory or a .gguf file");
  const bool is_directory = fs::is_directory(path, failed);
  if (!is_directory && path.extension() == ".safetensors")
    throw file_error(path.string(), "is one weight file, a model needs its config.json too",
                     "give the directory that holds it");
  auto model = is_directory ? open_safetensors_model(path, options) : open_gguf_model(path, import);
  if (model->facts() != nullptr) return model;
  // Families of one layout and without a head of their own.
  const bool refuses = options.idle == SourceOptions::Idle::refused;
  if (options.layout && refuses)
    throw Error(ErrorKind::usage,
                fmt::format("--layout {} is given, {} has one layout only", name_of(*options.layout), path.string()),
                "leave --layout out, or say --layout auto");
  if (options.mtp == MtpUse::on)
    throw file_error(path.string(), "is of a family without an MTP head, one was asked for", "leave --mtp out");
  if (options.mtp_hidden && refuses)
    throw Error(ErrorKind::usage,
                fmt::format("--mtp-hidden {} is given, {} is of a family without an MTP head",
                            name_of(*options.mtp_hidden), path.string()),
                "leave --mtp-hidden out, or say --mtp-hidden auto");
  return model;
}

std::unique_ptr<ModelSource> open_model_source(const fs::path& path, const SourceOptions& options) {
  return open_stored_model(path, GgufImport(), options);
}

}  // namespace outrider
