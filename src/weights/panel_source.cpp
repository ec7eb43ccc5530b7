#include "weights/panel_source.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "weights/file_error.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

// The current panel file of a model, if one of the places has it.
std::optional<PanelFile> current_file(const std::vector<fs::path>& places, const Fingerprint& fingerprint) {
  for (const fs::path& place : places) {
    std::error_code failed;
    if (!fs::exists(place, failed)) continue;
    try {
      PanelFile file(place);
      if (file.index().fingerprint == fingerprint) return file;
      log(LogLevel::info, "{}: belongs to another state of the model, the weights are packed anew", place.string());
    } catch (const Error& error) {
      log(LogLevel::info, "{}; the weights are packed anew", error.what());
    }
  }
  return std::nullopt;
}

}  // namespace

PanelSource::PanelSource(std::unique_ptr<StoredModel> source, PanelUse use) : source_(std::move(source)), use_(use) {
  if (use == PanelUse::off) return;
  files_ = source_->weight_files();
  places_ = panel_places(source_->path(), files_);
  fingerprint_ = state_of_files();
  file_ = current_file(places_, fingerprint_);
}

Fingerprint PanelSource::state_of_files() const {
  return panel_fingerprint(source_->weight_files(), source_->config(), source_->reading());
}

// The entry that answers for a tensor, null where the source must. Which forms packing gives is
// the layout version's to say.
const PanelEntry* PanelSource::entry(std::string_view name, PanelEntryKind kind, std::int64_t n, std::int64_t k) const {
  const PanelEntry* found = file_ ? file_->find(name, kind) : nullptr;
  if (found == nullptr || (n >= 0 && found->form.n != n) || (k >= 0 && found->form.k != k)) return nullptr;
  return found;
}

ModuleInfo PanelSource::module(std::string_view path, std::int64_t n, std::int64_t k) const {
  const PanelEntry* found = entry(path, PanelEntryKind::matrix, n, k);
  if (found == nullptr) return source_->module(path, n, k);
  const PackedMatrix& form = found->form;
  {
    const std::lock_guard guard(lock_);
    answered_.emplace(path);
  }
  return {form.kind, form.scale_type, form.bits, form.group, form.n, form.k, has(std::string(path) + ".bias")};
}

PackedWeight PanelSource::load_matrix(std::string_view path, std::int64_t n, std::int64_t k, Precision precision) {
  if (use_ == PanelUse::off || precision != Precision::packed) return source_->load_matrix(path, n, k, precision);
  check_data();
  const PanelEntry* found = entry(path, PanelEntryKind::matrix, n, k);
  if (found == nullptr) {
    PackedWeight packed = source_->load_matrix(path, n, k, precision);
    note(From::source, path, PanelEntryKind::matrix, packed.view, packed.view.data);
    return packed;
  }
  PackedWeight mapped;
  mapped.view = found->form;
  mapped.view.data = file_->data(*found);
  mapped.mapping = file_->mapping();
  mapped.charge = MemoryCharge(found->form.bytes(), MemoryPart::weights);
  note(From::file, path, PanelEntryKind::matrix, mapped.view, mapped.view.data);
  return mapped;
}

AlignedBuffer PanelSource::load_vector(std::string_view tensor, std::int64_t n) {
  if (use_ == PanelUse::off) return source_->load_vector(tensor, n);
  check_data();
  const PanelEntry* found = entry(tensor, PanelEntryKind::vector, n, -1);
  if (found == nullptr) {
    AlignedBuffer read = source_->load_vector(tensor, n);
    PackedMatrix form;
    form.n = n;
    form.k = 1;
    note(From::source, tensor, PanelEntryKind::vector, form, read.data());
    return read;
  }
  // A copy: vectors are few and small, and their users own them.
  AlignedBuffer copied(found->bytes(), MemoryPart::weights);
  std::memcpy(copied.data(), file_->data(*found), found->bytes());
  note(From::file, tensor, PanelEntryKind::vector, found->form, copied.data());
  return copied;
}

// Never kept: a graph turns a table into an order of its own and lets it go, before the file would be written from it.
AlignedBuffer PanelSource::load_table(std::string_view tensor, std::int64_t n, std::int64_t k) {
  return source_->load_table(tensor, n, k);
}

void PanelSource::set_parallel_for(ParallelFor parallel) {
  parallel_ = parallel;
  source_->set_parallel_for(std::move(parallel));
}

std::vector<std::string> PanelSource::unused_tensors() const {
  std::vector<std::string> unused = source_->unused_tensors();
  const std::lock_guard guard(lock_);
  // What a packed module was read from; the file was written after a load that knew every tensor's use.
  const auto is_used = [&](const std::string& tensor) {
    if (answered_.contains(tensor)) return true;
    for (const std::string_view part : {".weight", ".scales", ".biases", ".bias"})
      if (tensor.ends_with(part) && answered_.contains(tensor.substr(0, tensor.size() - part.size()))) return true;
    return false;
  };
  std::erase_if(unused, is_used);
  return unused;
}

void PanelSource::check_data() {
  std::call_once(checked_, [&] {
    if (!file_) return;
    std::atomic<std::int64_t> damaged{-1};
    run_tasks(parallel_, file_->pieces(), [&](std::int64_t piece) {
      if (!file_->piece_is_intact(piece)) damaged = piece;
    });
    if (damaged < 0) return;
    log(LogLevel::warning, "{}: part {} of {} is damaged, the weights are packed anew", file_->path().string(),
        damaged.load() + 1, file_->pieces());
    file_.reset();
  });
}

void PanelSource::note(From from, std::string_view name, PanelEntryKind kind, const PackedMatrix& form,
                       const std::byte* data) {
  PanelContent content;
  content.entry.name = name;
  content.entry.kind = kind;
  content.entry.form = form;
  content.entry.form.data = nullptr;
  content.data = data;
  const std::lock_guard guard(lock_);
  loaded_bytes_ += content.entry.bytes();
  loaded_.push_back(std::move(content));
  if (from == From::file)
    answered_.emplace(name);
  else
    packed_ = true;
}

std::optional<PanelJob> PanelSource::job() {
  const std::lock_guard guard(lock_);
  if (!packed_ || places_.empty() || (use_ == PanelUse::automatic && loaded_bytes_ < kWorthBytes)) return std::nullopt;
  return PanelJob{std::exchange(loaded_, {}), fingerprint_, files_, places_};
}

std::unique_ptr<PanelSource> open_panel_source(const fs::path& path, PanelUse use, const SourceOptions& options) {
  return std::make_unique<PanelSource>(open_stored_model(path, GgufImport(), options), use);
}

}  // namespace outrider
