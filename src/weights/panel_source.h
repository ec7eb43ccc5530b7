// A model whose packed weights come from its panel file where there is a current one, and are packed from its source
// where not; and the writing of that file for the next start.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "weights/panel_file.h"
#include "weights/panel_place.h"
#include "weights/stored_model.h"

namespace outrider {

// What is left to do for the next start. Borrows the packed weights of the model that was loaded.
struct PanelJob {
  std::vector<PanelContent> contents;
  Fingerprint fingerprint{};
  std::vector<OpenedFile> sources;
  std::vector<std::filesystem::path> places;
};

// Answers module() and load_*() from the panel file entry by entry; an entry it lacks, or one of another shape, comes
// from the source. The first load checks all of its data, on the threads given; a damaged file is not used at all.
// Everything else is the source's, tables too: graphs turn them into orders of their own. Same errors, same bytes, same
// plan as the source alone. Matrices and vectors must live until the file is written.
class PanelSource final : public ModelSource {
 public:
  // Automatic use writes a file only from this size on: two cores pack so much in about a third of a second.
  static constexpr std::uint64_t kWorthBytes = std::uint64_t{256} << 20;

  PanelSource(std::unique_ptr<StoredModel> source, PanelUse use);

  const nlohmann::json& config() const override { return source_->config(); }
  const nlohmann::json& generation_config() const override { return source_->generation_config(); }
  const std::filesystem::path& path() const override { return source_->path(); }
  std::uint64_t stored_bytes() const override { return source_->stored_bytes(); }
  bool has(std::string_view tensor) const override { return source_->has(tensor); }
  ModuleInfo module(std::string_view path, std::int64_t n, std::int64_t k) const override;
  PackedWeight load_matrix(std::string_view path, std::int64_t n, std::int64_t k, Precision precision) override;
  AlignedBuffer load_vector(std::string_view tensor, std::int64_t n) override;
  AlignedBuffer load_table(std::string_view tensor, std::int64_t n, std::int64_t k) override;
  void set_parallel_for(ParallelFor parallel) override;
  std::vector<std::string> unused_tensors() const override;
  const CheckpointFacts* facts() const override { return source_->facts(); }
  Sha256Digest mtp_identity() const override { return source_->mtp_identity(); }

  // Changes whenever what is loaded may give other results (panel_place.h).
  Fingerprint state_of_files() const;
  // The file in use; null: none.
  const PanelFile* file() const { return file_ ? &*file_ : nullptr; }
  // Whether all that was loaded came from the file.
  bool all_from_file() const { return file_ && !packed_; }
  // After the load: what to write, unless all came from the file or it is not worth it.
  std::optional<PanelJob> job();

 private:
  const PanelEntry* entry(std::string_view name, PanelEntryKind kind, std::int64_t n, std::int64_t k) const;
  void check_data();
  enum class From : std::uint8_t { file, source };
  void note(From from, std::string_view name, PanelEntryKind kind, const PackedMatrix& form, const std::byte* data);

  std::unique_ptr<StoredModel> source_;
  PanelUse use_;
  std::vector<OpenedFile> files_;
  std::vector<std::filesystem::path> places_;
  Fingerprint fingerprint_{};
  std::optional<PanelFile> file_;
  ParallelFor parallel_;
  std::once_flag checked_;
  mutable std::mutex lock_;  // of all below
  mutable std::set<std::string, std::less<>> answered_;
  std::vector<PanelContent> loaded_;
  std::uint64_t loaded_bytes_ = 0;
  bool packed_ = false;  // something did not come from the file
};

// Opens a model as open_model_source() does.
std::unique_ptr<PanelSource> open_panel_source(const std::filesystem::path& path, PanelUse use,
                                               const SourceOptions& options = {});

// Writes the file of a job into the first place that takes it, on a thread of idle priority that this object owns;
// where none does, one log line says why. The destructor raises the priority and waits at most kPatience, then gives up
// and leaves nothing; at once while an exception is under way, and when `interrupted` (may be empty) says so.
class PanelWriting {
 public:
  PanelWriting(PanelJob job, std::function<bool()> interrupted);
  PanelWriting(const PanelWriting&) = delete;
  PanelWriting& operator=(const PanelWriting&) = delete;
  ~PanelWriting();
  static constexpr std::chrono::seconds kPatience{10};

 private:
  PanelJob job_;
  std::function<bool()> interrupted_;
  std::atomic<std::chrono::steady_clock::time_point> deadline_{std::chrono::steady_clock::time_point::max()};
  std::atomic<bool> finished_{false};
  std::jthread thread_;  // last: it reads the others
};

}  // namespace outrider
