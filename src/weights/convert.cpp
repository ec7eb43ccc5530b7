#include "weights/convert.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "weights/convert_plan.h"
#include "weights/draft_ranking.h"
#include "weights/file_error.h"
#include "weights/json_strict.h"
#include "weights/quantized.h"
#include "weights/safetensors_writer.h"
#include "weights/sha256.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Text files that belong to the model as they are.
constexpr std::array<std::string_view, 11> kCopied{
    "generation_config.json",  kDraftRankingFile,     "tokenizer.json",    "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json",   "vocab.json",        "merges.txt",
    "tokenizer.model",         "chat_template.jinja", "chat_template.json"};
constexpr std::int64_t kChunkBytes = 8 << 20;  // of f32 values held while a matrix is converted

// A directory that is removed unless it was renamed away.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const fs::path& target)
      : path_(target.parent_path() / fmt::format(".{}.{}.tmp", target.filename().string(), getpid())) {
    std::error_code failed;
    fs::remove_all(path_, failed);  // left by a killed process with the same id
    if (!fs::create_directories(path_, failed) || failed)
      throw Error(ErrorKind::runtime, fmt::format("cannot create {}: {}", path_.string(), failed.message()),
                  "check the directory, its rights and the room on its disk");
  }
  ~TemporaryDirectory() {
    std::error_code failed;
    if (!path_.empty()) fs::remove_all(path_, failed);
  }
  const fs::path& path() const { return path_; }
  void publish(const fs::path& target) {
    sync_directory(path_);
    std::error_code failed;
    fs::rename(path_, target, failed);
    if (failed)
      throw Error(ErrorKind::runtime,
                  fmt::format("cannot rename {} to {}: {}", path_.string(), target.string(), failed.message()),
                  "check the directory, its rights and the room on its disk");
    path_.clear();
    sync_directory(target.parent_path());
  }

 private:
  fs::path path_;
};

void check_cancelled(const ConvertOptions& options) {
  if (options.cancelled && options.cancelled())
    throw Error(ErrorKind::interrupted, "conversion cancelled; nothing was left behind");
}

// SHA-256 over the weight files in name order.
std::string hash_of(const std::vector<OpenedFile>& files, const ConvertOptions& options) {
  Sha256 hash;
  constexpr std::size_t kPiece = 16 << 20;
  for (const OpenedFile& opened : files) {
    const MappedFile file(opened.path);
    const auto bytes = file.bytes();
    for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
      check_cancelled(options);
      const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
      hash.add(piece);
      file.drop_pages(at, piece.size());
    }
  }
  return hex(hash.finish());
}

// Rows [begin, end) of a matrix in the form they are written in.
struct RowsOut {
  std::vector<std::byte> weight, scales, biases;
};

void quantize_row(const MatrixRows& rows, std::int64_t row, const ConvertStep& step, std::byte* weight,
                  std::byte* scales, std::byte* biases) {
  const auto k = static_cast<std::size_t>(rows.info.k);
  std::vector<float> values(k);
  read_row_f32(rows, row, values);
  for (std::size_t j = 0; j < k; ++j)
    if (!std::isfinite(values[j]))
      throw Error(ErrorKind::data,
                  fmt::format("{}: value [{}, {}] is {} and cannot be quantized", step.item.name, row, j, values[j]),
                  kGetAnew);
  const auto group = static_cast<std::size_t>(step.item.group);
  const std::size_t size = size_of(step.type);
  std::vector<std::uint8_t> codes(k);
  for (std::size_t g = 0; g < k / group; ++g) {
    const AffineGroup made =
        quantize_affine(std::span(values).subspan(g * group, group), step.item.bits, &codes[g * group]);
    store_float(scales + g * size, step.type, made.scale);
    store_float(biases + g * size, step.type, made.bias);
    if (!std::isfinite(load_float(scales + g * size, step.type)) ||
        !std::isfinite(load_float(biases + g * size, step.type)))
      throw Error(ErrorKind::data,
                  fmt::format("{}: scale {} or bias {} of row {} does not fit {}", step.item.name, made.scale,
                              made.bias, row, name_of(step.type)),
                  fmt::format("leave it as it is: --q-override '{}=16'", step.item.name));
  }
  pack_codes(codes, step.item.bits, weight);
}

void convert_row(const MatrixRows& rows, std::int64_t row, const ConvertStep& step, std::byte* weight,
                 std::byte* scales, std::byte* biases) {
  if (step.item.requantized) return quantize_row(rows, row, step, weight, scales, biases);
  if (rows.dense) return rows.dense(row, weight);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows.info.k));
  if (rows.e2m1)
    rows.e2m1(row, codes.data(), reinterpret_cast<std::uint8_t*>(scales));
  else
    rows.affine(row, codes.data(), scales, biases);
  pack_codes(codes, step.item.bits, weight);
}

class Run {
 public:
  // `bytes`: of all steps that will be written.
  Run(const StoredModel& source, const ConvertOptions& options, std::uint64_t bytes)
      : source_(source), options_(options), bytes_(bytes) {}

  void write_weights(const fs::path& directory, const std::vector<ConvertStep>& steps,
                     const std::map<std::string, std::string>& metadata) {
    const std::vector<std::size_t> ends = shard_ends(steps);
    std::uint64_t total = 0;
    json weight_map = json::object();
    std::size_t begin = 0;
    for (std::size_t shard = 0; shard < ends.size(); ++shard) {
      const std::string name = ends.size() == 1
                                   ? "model.safetensors"
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, ends.size());
      std::vector<StoredTensor> tensors;
      for (std::size_t i = begin; i < ends[shard]; ++i)
        for (const StoredTensor& t : steps[i].outputs) {
          tensors.push_back(t);
          weight_map[t.name] = name;
          total += t.bytes;
        }
      SafetensorsWriter writer(directory / name, std::move(tensors), metadata);
      for (; begin < ends[shard]; ++begin) write_step(steps[begin], writer);
      writer.commit();
    }
    if (ends.size() == 1) return;
    const json index{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    write_file_whole(directory / "model.safetensors.index.json", index.dump(2) + "\n");
  }

 private:
  // One past the last step of each shard.
  std::vector<std::size_t> shard_ends(const std::vector<ConvertStep>& steps) const {
    std::vector<std::size_t> ends;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::uint64_t next = steps[i].item.bytes;
      if (bytes > 0 && bytes + next > options_.max_shard_bytes) {
        ends.push_back(i);
        bytes = 0;
      }
      bytes += next;
    }
    ends.push_back(steps.size());
    return ends;
  }

  void write_step(const ConvertStep& step, SafetensorsWriter& writer) {
    check_cancelled(options_);
    if (step.is_matrix) {
      write_matrix(step, writer);
    } else {
      const StoredModel::Values read = source_.values(step.item.name);
      std::vector<std::byte> bytes(read.values.size() * size_of(step.type));
      for (std::size_t i = 0; i < read.values.size(); ++i)
        store_float(bytes.data() + i * size_of(step.type), step.type, read.values[i]);
      writer.write(step.outputs.front().name, 0, bytes);
    }
    done_ += step.item.bytes;
    if (options_.progress) options_.progress(done_, bytes_);
  }

  void write_matrix(const ConvertStep& step, SafetensorsWriter& writer) {
    const MatrixRows rows = source_.rows(step.item.name, -1);
    if (rows.info.n == 0 || rows.info.k == 0) return;
    const auto n = static_cast<std::uint64_t>(rows.info.n);
    // Sorted by name: biases or global_scale where there are any, scales of a coded matrix, weight.
    const StoredTensor& weight = step.outputs.back();
    const StoredTensor* scales = step.outputs.size() > 1 ? &step.outputs[step.outputs.size() - 2] : nullptr;
    const StoredTensor* biases = step.item.kind == "affine" ? &step.outputs.front() : nullptr;
    const std::uint64_t weight_row = weight.bytes / n;
    const std::uint64_t scale_row = scales != nullptr ? scales->bytes / n : 0;
    const std::int64_t chunk = std::max<std::int64_t>(1, kChunkBytes / (rows.info.k * 4));
    RowsOut out;
    for (std::int64_t begin = 0; begin < rows.info.n; begin += chunk) {
      check_cancelled(options_);
      const std::int64_t end = std::min(rows.info.n, begin + chunk);
      out.weight.resize(static_cast<std::size_t>(end - begin) * weight_row);
      out.scales.resize(static_cast<std::size_t>(end - begin) * scale_row);
      out.biases.resize(biases != nullptr ? out.scales.size() : 0);
      run_tasks(options_.parallel, end - begin, [&](std::int64_t i) {
        const auto at = static_cast<std::uint64_t>(i);
        convert_row(rows, begin + i, step, out.weight.data() + at * weight_row, out.scales.data() + at * scale_row,
                    biases != nullptr ? out.biases.data() + at * scale_row : nullptr);
      });
      const auto first = static_cast<std::uint64_t>(begin);
      writer.write(weight.name, first * weight_row, out.weight);
      if (scales != nullptr) writer.write(scales->name, first * scale_row, out.scales);
      if (biases != nullptr) writer.write(biases->name, first * scale_row, out.biases);
      if (rows.drop) rows.drop(begin, end);
    }
    if (rows.drop) rows.drop(0, rows.info.n);
    if (step.item.kind == name_of(Fp4Mode::nvfp4) && rows.fp4.global_scale)
      writer.write(step.outputs.front().name, 0, std::as_bytes(std::span(&*rows.fp4.global_scale, 1)));
  }

  const StoredModel& source_;
  const ConvertOptions& options_;
  std::uint64_t bytes_ = 0, done_ = 0;
};

void check_target(const fs::path& target) {
  std::error_code failed;
  if (!fs::exists(fs::symlink_status(target, failed))) return;
  if (!fs::is_directory(target, failed) || !fs::is_empty(target, failed))
    throw Error(ErrorKind::usage, fmt::format("{} exists and is not an empty directory", target.string()),
                "choose another target or remove it");
}

fs::path target_of(const fs::path& given) {
  fs::path target = fs::absolute(given).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  check_target(target);
  return target;
}

void make_parent(const fs::path& target) {
  std::error_code failed;
  fs::create_directories(target.parent_path(), failed);
  if (failed)
    throw Error(ErrorKind::runtime,
                fmt::format("cannot create {}: {}", target.parent_path().string(), failed.message()),
                "check the directory, its rights and the room on its disk");
}

void check_space(const fs::path& directory, std::uint64_t bytes) {
  constexpr std::uint64_t kText = 64u << 20;  // config, tokenizer, file system blocks
  std::error_code failed;
  const fs::space_info space = fs::space(directory, failed);
  if (!failed && space.available < bytes + kText)
    throw Error(ErrorKind::runtime,
                fmt::format("{} has {} bytes free, the conversion needs {}", directory.string(), space.available,
                            bytes + kText),
                "free disk space or choose another target");
}

void write_texts(const StoredModel& source, const std::vector<ConvertStep>& steps, const ConvertOptions& options,
                 const fs::path& directory) {
  write_file_whole(directory / "config.json", converted_config(source, steps).dump(2) + "\n");
  std::error_code failed;
  const bool from_directory = fs::is_directory(source.path(), failed);
  if (!from_directory && !source.generation_config().is_null())
    write_file_whole(directory / "generation_config.json", source.generation_config().dump(2) + "\n");
  if (from_directory)
    for (const std::string_view name : kCopied)
      if (fs::exists(source.path() / name, failed))
        write_file_whole(directory / name, read_text_file(source.path() / name, 1u << 30));
  for (const auto& [name, text] : options.extra_files) {
    OUTRIDER_CHECK(name.find('/') == std::string::npos && !name.empty() && name[0] != '.', "extra file {}", name);
    write_file_whole(directory / name, text);
  }
}

}  // namespace

ConvertResult convert(const fs::path& source_path, const fs::path& target_path, const ConvertOptions& options) {
  const fs::path target = target_of(target_path);
  const bool apart = !options.mtp_side_car.empty();
  const fs::path side_car = apart ? target_of(options.mtp_side_car) : fs::path();
  if (apart && side_car == target)
    throw Error(ErrorKind::usage, fmt::format("the model and its MTP head are both to be {}", target.string()),
                "choose two directories");
  const auto source = open_stored_model(source_path, options.gguf, options.reading);
  ConvertDecisions decisions = decide_convert(*source, options);
  std::vector<ConvertStep> head;
  if (apart) head = take_head(decisions.steps);
  if (apart && head.empty())
    throw Error(ErrorKind::usage, fmt::format("{} has no MTP head to put apart", source_path.string()),
                "see `outrider models info`");
  check_cancelled(options);
  make_parent(target);
  if (apart) make_parent(side_car);
  check_space(target.parent_path(), decisions.plan.bytes);
  std::map<std::string, std::string> metadata = source->written_metadata();
  metadata["format"] = "mlx";
  metadata["outrider.source_sha256"] = hash_of(source->weight_files(), options);
  Run run(*source, options, decisions.plan.bytes);
  TemporaryDirectory temporary(target);
  run.write_weights(temporary.path(), decisions.steps, metadata);
  write_texts(*source, decisions.steps, options, temporary.path());
  if (apart) {
    TemporaryDirectory beside(side_car);
    run.write_weights(beside.path(), head, metadata);
    write_file_whole(beside.path() / "config.json", side_car_config(*source, head).dump(2) + "\n");
    check_cancelled(options);
    beside.publish(side_car);
  }
  check_cancelled(options);
  temporary.publish(target);
  return {target, decisions.plan.tensors, decisions.plan.bytes, decisions.plan.bits_per_weight};
}

}  // namespace outrider
