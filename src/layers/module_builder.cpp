#include "layers/module_builder.h"

#include <algorithm>

#include "base/error.h"

namespace outrider {
namespace {

constexpr std::size_t kListed = 8;  // names of an error message; the rest is a count

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kListed); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kListed ? fmt::format("{} and {} more", text, names.size() - kListed) : text;
}

}  // namespace

ModuleBuilder::ModuleBuilder(const ModelSource& source, ModelSource* loads, Precision precision)
    : source_(source), loads_(loads), precision_(precision) {}

ModuleBuilder ModuleBuilder::plan(const ModelSource& source, Precision precision) {
  return {source, nullptr, precision};
}

ModuleBuilder ModuleBuilder::load(ModelSource& source, Precision precision) { return {source, &source, precision}; }

bool ModuleBuilder::present(const std::string& tensor) {
  if (source_.has(tensor)) return true;
  if (loads_ == nullptr) missing_.push_back(tensor);
  return false;
}

void ModuleBuilder::count(std::string_view kind, std::size_t bytes, std::int64_t parameters) {
  parameters_ += parameters;
  const auto same = [&](const auto& entry) { return entry.first == kind; };
  auto entry = std::find_if(bytes_by_kind_.begin(), bytes_by_kind_.end(), same);
  if (entry == bytes_by_kind_.end()) entry = bytes_by_kind_.insert(entry, {std::string(kind), 0});
  entry->second += bytes;
}

std::size_t ModuleBuilder::bytes() const {
  std::size_t sum = 0;
  for (const auto& [kind, bytes] : bytes_by_kind_) sum += bytes;
  return sum;
}

PackedWeight ModuleBuilder::matrix(std::string_view kind, const std::string& path, std::int64_t n, std::int64_t k,
                                   HasBias bias) {
  PackedWeight weight;
  if (loads_ != nullptr) {
    weight = loads_->load_matrix(path, n, k, precision_);
    OUTRIDER_CHECK(weight.view.n == n && weight.view.k == k, "{} loaded as [{}, {}]", path, weight.view.n,
                   weight.view.k);
    count(kind, weight.view.bytes(), n * k);
    return weight;
  }
  if (!present(path + ".weight")) return weight;
  const ModuleInfo module = source_.module(path, n, k);
  if (module.has_bias && bias == HasBias::no)
    throw Error(ErrorKind::data, fmt::format("{}.bias exists, this model's config says {} has none", path, path),
                "check attention_bias and mlp_bias of config.json");
  weight.view = packed_form(module, precision_);
  count(kind, weight.view.bytes(), n * k);
  return weight;
}

AlignedBuffer ModuleBuilder::floats(std::string_view kind, const std::string& tensor, std::int64_t count,
                                    const std::function<AlignedBuffer(ModelSource&)>& load) {
  floats_.insert(tensor);
  if (loads_ != nullptr) {
    AlignedBuffer loaded = load(*loads_);
    this->count(kind, loaded.size(), count);
    return loaded;
  }
  if (present(tensor)) this->count(kind, static_cast<std::size_t>(count) * sizeof(float), count);
  return {};
}

AlignedBuffer ModuleBuilder::vector(std::string_view kind, const std::string& tensor, std::int64_t n) {
  return floats(kind, tensor, n, [&](ModelSource& source) { return source.load_vector(tensor, n); });
}

AlignedBuffer ModuleBuilder::table(std::string_view kind, const std::string& tensor, std::int64_t n, std::int64_t k) {
  return floats(kind, tensor, n * k, [&](ModelSource& source) { return source.load_table(tensor, n, k); });
}

Linear ModuleBuilder::linear(std::string_view kind, const std::string& path, std::int64_t n, std::int64_t k,
                             HasBias bias) {
  linears_[path] = {n, k};
  Linear linear;
  linear.weight = matrix(kind, path, n, k, bias);
  if (bias == HasBias::yes) linear.bias = vector(kind, path + ".bias", n);
  return linear;
}

Embedding ModuleBuilder::embedding(std::string_view kind, const std::string& path, std::int64_t n, std::int64_t k) {
  return {matrix(kind, path, n, k, HasBias::no)};
}

Norm ModuleBuilder::norm(std::string_view kind, const std::string& path, std::int64_t width, float eps) {
  return {vector(kind, path + ".weight", width), eps};
}

void ModuleBuilder::check_complete(const std::function<bool(std::string_view tensor)>& dropped) const {
  std::vector<std::string> unused;
  for (const std::string& tensor : source_.unused_tensors())
    if (!floats_.contains(tensor) && !dropped(tensor)) unused.push_back(tensor);
  if (missing_.empty() && unused.empty()) return;
  std::string what = source_.path().string() + ":";
  if (!missing_.empty())
    what += fmt::format(" {} tensors of the graph are missing ({})", missing_.size(), listed(missing_));
  if (!unused.empty())
    what += fmt::format("{} {} tensors are not part of the graph ({})", missing_.empty() ? "" : ";", unused.size(),
                        listed(unused));
  throw Error(ErrorKind::data, what, "the files and config.json do not belong together, or the download is incomplete");
}

}  // namespace outrider
