// The Device of CPUs: numerics.md over one kernel table and one worker pool. Work is split over tokens, strips, heads,
// chunks of keys and, where it ends in coding, over multiples of the group width; never over K. So bytes depend on
// neither threads nor tiles.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/shares.h"
#include "base/worker_pool.h"
#include "device/device.h"

namespace outrider {

class CpuDevice final : public Device {
 public:
  // threads 0: default_threads().
  CpuDevice(int threads, const KernelTable& kernels);

  std::string_view name() const override { return name_; }
  int threads() const override { return pool_.threads(); }
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task) override;

  void embed(const PackedMatrix& table, std::span<const std::int32_t> ids, Tensor out) override;
  void rms_norm(Tensor x, const float* w, float eps, Tensor out) override;
  void linear(Tensor x, std::span<const LinearPart> parts, Arena& arena, std::uint32_t* faults) override;
  void norm_linear(Tensor h, const float* w, float eps, std::span<const LinearPart> parts, Arena& arena,
                   std::uint32_t* faults) override;
  void swiglu(Tensor gate, Tensor up) override;
  void swiglu_linear(Tensor gate, Tensor up, const LinearPart& part, Arena& arena, std::uint32_t* faults) override;
  void gated_linear(const AttentionShape& shape, Tensor o, Tensor q, const LinearPart& part, Arena& arena,
                    std::uint32_t* faults) override;
  void rope_angles(const RaggedBatch& batch, std::span<const RowFrequencies> rows, RopeAngles out) override;
  void rope_store(const AttentionShape& shape, const RopeAngles& angles, const RaggedBatch& batch,
                  const KvLayout& layout, std::int64_t layer, Tensor q, Tensor k, Tensor v, std::uint32_t* faults,
                  std::int64_t* clamps) override;
  void attention(const AttentionShape& shape, const RaggedBatch& batch, const KvLayout& layout, std::int64_t layer,
                 Tensor q, Tensor out, Arena& arena) override;
  void gated_delta(const DeltaShape& shape, const RaggedBatch& batch, const RecurrentLayout& layout, std::int64_t layer,
                   Tensor p, Tensor a, Tensor b) override;
  void gated_norm_linear(Tensor y, Tensor z, const float* w, std::int64_t head_width, float eps, const LinearPart& part,
                         Arena& arena, std::uint32_t* faults) override;
  void gather(Tensor x, std::span<const std::int64_t> picks, Tensor out) override;
  void log_normalizers(Tensor z, float* max, double* ln_sum) override;
  std::size_t normalizer_scratch_bytes(std::int64_t rows, std::int64_t vocab) const override;
  void reserve_normalizers(std::int64_t rows, std::int64_t vocab) override;
  void argmax(Tensor z, std::int32_t* ids, std::uint32_t* faults) override;

  std::size_t linear_scratch_bytes(LinearOperation operation, std::int64_t tokens, std::int64_t width,
                                   std::uint32_t forms) const override;
  std::size_t attention_scratch_bytes(std::int64_t tokens, std::int64_t rows, const AttentionShape& shape,
                                      std::int64_t context_tokens) const override;

 private:
  // Runs task(index, thread) for [0, tasks): a single task in the caller, without waking anybody. The pool gets a
  // reference, so no call allocates.
  template <class Task>
  void parallel(std::int64_t tasks, Task&& task) {
    if (tasks == 1) {
      task(std::int64_t{0}, 0);
    } else if (tasks > 1) {
      pool_.run(tasks, std::ref(task));
    }
  }

  // Where the threads' shares of a linear operation begin. The operation after one is taken to be the one that followed
  // it last time: a model's steps are all alike.
  struct WeightOrder {
    // By an operation's first weights, one entry per operation of models: the starts of the one that followed it, one
    // per thread; empty: none has.
    std::unordered_map<const std::byte*, std::vector<const std::byte*>> followers;
    std::vector<const std::byte*>* next = &followers[nullptr];  // of the operation before the one at hand
  };

  class LinearWork;     // cpu_linear.cpp
  class AttentionWork;  // cpu_attention.cpp
  class DeltaWork;      // cpu_delta.cpp

  WorkerPool pool_;
  const KernelTable& kernels_;
  std::string name_;
  Shares shares_;  // of the linear operation at hand
  WeightOrder weight_order_;
  // Of log_normalizers(): two floats per tile of 256 for 16 rows.
  AlignedBuffer tiles_;
};

// The row of `batch` that owns flat token t.
std::size_t row_of_token(const RaggedBatch& batch, std::int64_t token);

// CHECKs that rows tile [0, T) in order and that their blocks cover their positions.
void check_batch(const RaggedBatch& batch);

// make_cpu_device() with a table of the caller's choice: identity tests over instruction sets.
std::unique_ptr<Device> make_cpu_device(int threads, const KernelTable& kernels);

}  // namespace outrider
