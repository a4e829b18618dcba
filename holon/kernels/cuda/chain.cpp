// Chains of element-wise steps as one kernel each, compiled while the program runs.
#include "holon/kernels/chain.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/base/settings.h"
#include "holon/kernels/cuda/capability.h"
#include "holon/kernels/cuda/chain_source.h"
#include "holon/kernels/cuda/divider.h"
#include "holon/kernels/cuda/rtc.h"
#include "holon/kernels/cuda/stream.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {

namespace {

void say_once(const std::string& why) {
  static std::atomic<bool> said{false};
  if (!said.exchange(true))
    log::warn(fmt::format(
        "nn.Graph: element-wise ops run on the device as a kernel each, not as one for a chain of them: {}", why));
}

// One for a source and a compute capability, made by the rank that comes first.
struct Compiled {
  std::mutex mutex;
  bool tried = false;
  RunTimeKernel kernel = nullptr;
};

RunTimeKernel compiled(const std::string& source) {
  static std::mutex mutex;
  static auto* all = new std::map<std::pair<std::string, int>, Compiled>;
  const int capability = compute_capability();
  BlockingScope unlocked;
  Compiled* c = nullptr;
  {
    std::lock_guard lock(mutex);
    c = &(*all)[{source, capability}];
  }
  std::lock_guard lock(c->mutex);
  if (c->tried) return c->kernel;
  c->tried = true;
  try {
    c->kernel = compile_kernel(source, kChainKernelName);
  } catch (const Error& e) {
    say_once(e.what());
  }
  return c->kernel;
}

class CudaChainKernel final : public ChainKernel {
 public:
  CudaChainKernel(const Chain& chain, std::span<const ChainAxis> axes)
      : chain_(chain), axes_(axes.begin(), axes.end()), packed_(chain, axes, true), single_(chain, axes, false) {
    for (auto& axis : axes_) count_ *= axis.size;
  }

  bool run(std::span<const Array* const> in, std::span<Array* const> out) override {
    use_device_of(*out[0]);
    Version& v = packed_.variant.width > 1 && aligned(in, out) ? packed_ : single_;
    if (!v.kernel) {
      if (v.tried) return false;
      v.tried = true;
      v.kernel = compiled(chain_source(chain_, v.variant));
      if (!v.kernel) return false;
      v.arguments = chain_arguments(chain_, v.variant);
    }
    const int64_t packs = axes_.size() == 1 ? count_ / v.variant.width
                                            : count_ / axes_.back().size * (axes_.back().size / v.variant.width);
    words_.clear();
    for (auto& arg : v.arguments) add(arg, v.variant, packs, in, out);
    const int64_t per_block = int64_t{kChainThreads} * v.variant.at_once;
    const int64_t blocks = std::clamp<int64_t>((packs + per_block - 1) / per_block, 1, int64_t{32} * multiprocessors());
    launch_kernel(v.kernel, static_cast<unsigned>(blocks), kChainThreads, words_.data(),
                  words_.size() * sizeof(uint64_t));
    return true;
  }

 private:
  struct Version {
    Version(const Chain& chain, std::span<const ChainAxis> axes, bool aligned) : variant(chain, axes, aligned) {}
    ChainVariant variant;
    std::vector<ChainArgument> arguments;
    RunTimeKernel kernel = nullptr;
    bool tried = false;
  };

  bool aligned(std::span<const Array* const> in, std::span<Array* const> out) const {
    const auto fits = [&](const Array& a, size_t k) {
      return axes_.back().strides[k] != 1 ||
          reinterpret_cast<uintptr_t>(a.bytes()) % pack_bytes(packed_.variant.width, size_bytes(a.dtype)) == 0;
    };
    for (size_t k = 0; k < in.size(); ++k)
      if (!fits(*in[k], k)) return false;
    for (size_t k = 0; k < out.size(); ++k)
      if (!fits(*out[k], in.size() + k)) return false;
    return true;
  }

  void add(const ChainArgument& arg, const ChainVariant& variant, int64_t packs, std::span<const Array* const> in,
           std::span<Array* const> out) {
    using K = ChainArgument::Kind;
    const auto a = to_size(arg.a), b = to_size(arg.b);
    const auto word = [&](auto v) { words_.push_back((uint64_t)v); };
    switch (arg.kind) {
      case K::kData: return word(a < in.size() ? in[a]->bytes() : out[a - in.size()]->bytes());
      case K::kFaults: return word(fault_report());
      case K::kName: return word(chain_.steps[a].name);
      case K::kNumber: return word(chain_.steps[a].numbers[b]);
      case K::kCount: return word(count_);
      case K::kPacks: return word(packs);
      case K::kStride: return word(axes_[a].strides[b]);
      case K::kDivider: {
        const int64_t size = a + 1 == axes_.size() ? axes_[a].size / variant.width : axes_[a].size;
        if (!variant.small) return word(size);
        const Divider d(static_cast<uint32_t>(size));
        word(d.d | uint64_t{d.magic} << 32);
        return word(d.shift);
      }
    }
  }

  Chain chain_;
  std::vector<ChainAxis> axes_;
  int64_t count_ = 1;
  Version packed_, single_;
  std::vector<uint64_t> words_;
};

// What a kernel takes as its parameter: 4 KiB on all devices.
constexpr size_t kMostWords = 4096 / sizeof(uint64_t);

std::unique_ptr<ChainKernel> make_chain_kernel(const Chain& chain, std::span<const ChainAxis> axes, Device device) {
  static const bool wanted = settings::flag("HOLON_FUSED_KERNELS");
  if (!wanted) return nullptr;
  if (!why_no_compiler().empty()) {
    say_once(why_no_compiler());
    return nullptr;
  }
  const ChainVariant longest(chain, axes, false);
  if (2 * chain_arguments(chain, longest).size() > kMostWords) return nullptr;
  use_device(device.index);
  return std::make_unique<CudaChainKernel>(chain, axes);
}

HOLON_DEVICE_KERNEL(make_chain_kernel, make_chain_kernel);

}  // namespace
}  // namespace holon::kernels::cuda
