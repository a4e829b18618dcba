#include "holon/base/settings.h"

#include <cstdlib>

#include "holon/base/error.h"

namespace holon::settings {

namespace {

constexpr Setting kTable[] = {
    {"HOLON_ARENA_GB", "0", "Address space of a rank's shared arena in GiB; 0 means four times the machine's memory."},
    {"HOLON_BOXING_POLICY", "silent", "What an op does when it must move data by itself: silent, warn or raise."},
    {"HOLON_CACHE_HIGH_WATER_MB", "",
     "MiB of free CPU memory that are kept for the next arrays; what is more goes back to the system. Empty: as much "
     "as "
     "has been in use at a time."},
    {"HOLON_CHECK", "0",
     "1 checks that values given as broadcast, or to tensor() with a placement, are alike on every rank."},
    {"HOLON_COMM_TIMEOUT_S", "300", "Seconds after which a collective that some rank has not joined is an error."},
    {"HOLON_CUDA_GRAPHS", "1",
     "1 lets nn.Graph record a step's work on a cuda device and launch it as one, 0 launches every kernel by itself."},
    {"HOLON_CUDA_LIBRARY", "",
     "The CUDA backend's library; empty takes libholon_cuda.so beside libholon.so or, where there is none, that of the "
     "Python package holon_cuda."},
    {"HOLON_CUDA_LINKS", "1",
     "1 lets pipeline stages on cuda devices hand data over from device to device, 0 through the host's memory."},
    {"HOLON_DATA_DIR", "", "Folder of data sets: MNIST's files lie in its folder mnist."},
    {"HOLON_DEVICE_LIBRARIES", "",
     "Files of device backends, separated by colons, that are loaded when a device of an unknown type is asked for; "
     "the "
     "same on all ranks."},
    {"HOLON_FORK_COPY_MB", "1024",
     "MiB of a rank's tensors that are copied for a process that forks from it. If they are more, the child makes no "
     "tensors."},
    {"HOLON_FUSED_KERNELS", "1",
     "1 lets nn.Graph compile a chain of element-wise ops into one kernel of a cuda device, 0 runs them there one by "
     "one."},
    {"HOLON_HEARTBEAT_S", "10", "Seconds without a sign of life from another host after which it counts as lost."},
    {"HOLON_HOST", "",
     "Name of the host that this rank is on; ranks with different names share no memory. Empty: the host's own."},
    {"HOLON_GRADIENT_BUCKET_MB", "4",
     "MiB of gradients that backward collects before it sums them between the ranks in the background."},
    {"HOLON_ISA", "",
     "Instruction set of the CPU kernels: base, v3 (AVX2) or v4 (AVX-512); empty takes the best there is."},
    {"HOLON_LOG", "", "Comma-separated channels to log to stderr: boxing, dispatch, comm, or all."},
    {"HOLON_MACHINE_COSTS", "",
     "Figures that boxing is planned by, as sync=1e-6,copy=1e10 (holon/cost/machine.h); the rest is measured, or built "
     "in after fixed."},
    {"HOLON_MEMORY_LIMIT_MB", "0",
     "MiB of CPU memory that the arrays of a process may take, free memory that is kept included; 0 means no limit."},
    {"HOLON_NET_INTERFACE", "",
     "Network interface to other hosts, e.g. eth0; empty takes the one that leads to MASTER_ADDR."},
    {"HOLON_OVERLAP", "",
     "1 lets backward sum gradients between ranks in the background, 0 does not; empty: where cores or a network are "
     "free, and on cuda devices."},
    {"HOLON_PARAMETER_BOXING", "keep",
     "Whether ops move parameters by themselves: keep, where they cannot do without; gather, where it is the "
     "cheapest."},
    {"HOLON_RENDEZVOUS_TIMEOUT_S", "60", "Seconds in which all ranks of a world must have started."},
    {"HOLON_SIMULATE", "", "cuda lets \"cuda\" placements and devices run on the CPU, with one warning."},
    {"HOLON_SPIN_US", "", "Microseconds that a waiting rank spins before it sleeps; empty chooses by cores and ranks."},
    {"HOLON_STORE_HOSTED", "0",
     "1 means that somebody else, the launcher, serves the store at MASTER_PORT: rank 0 does not."},
    {"HOLON_STORE_TOKEN", "",
     "Secret that the ranks of one program share, required on several hosts; the launcher draws one where it is "
     "empty."},
    {"HOLON_STORE_TOKEN_FILE", "",
     "File with that secret, for hosts that see the same files; rank 0, or its launcher, makes it where it is "
     "missing."},
    {"HOLON_SYNC", "0",
     "1 waits for every op on a cuda device before the next, so that an error names the op it is of."},
    {"HOLON_TF32", "0",
     "1 lets cuda devices round the factors of float32 products and convolutions to TF32, which is several times "
     "faster."},
    {"HOLON_TRACE", "",
     "A file that gets a trace of every rank's ops and boxing, for ui.perfetto.dev; empty means none."},
};

const Setting& find(std::string_view name) {
  for (auto& s : kTable)
    if (name == s.name) return s;
  internal_error(__FILE__, __LINE__, "find", "no setting {}", name);
}

}  // namespace

std::span<const Setting> all() { return kTable; }

std::string text(std::string_view name) {
  auto& s = find(name);
  const char* value = std::getenv(s.name);
  return value ? value : s.fallback;
}

double number(std::string_view name) {
  std::string value = text(name);
  char* end = nullptr;
  double d = std::strtod(value.c_str(), &end);
  if (value.empty() || *end) fail_value("{}=\"{}\" is not a number. {}", name, value, find(name).doc);
  return d;
}

bool flag(std::string_view name) {
  std::string value = text(name);
  return !(value.empty() || value == "0" || value == "false" || value == "off");
}

}  // namespace holon::settings
