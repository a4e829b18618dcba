#include "holon/base/settings.h"

#include <cstdlib>

#include "holon/base/error.h"

namespace holon::settings {

namespace {

constexpr Setting kTable[] = {
    {"HOLON_ARENA_GB", "0", "Address space of a rank's shared arena in GiB; 0 means four times the machine's memory."},
    {"HOLON_BOXING_POLICY", "silent", "What an op does when it must move data by itself: silent, warn or raise."},
    {"HOLON_CACHE_HIGH_WATER_MB", "",
     "MiB of freed CPU memory that are cached for later arrays; the rest is returned to the system. Empty: the peak of "
     "what was in use."},
    {"HOLON_CHECK", "0",
     "1 checks that values passed as broadcast, or to tensor() with a placement, are equal on every rank."},
    {"HOLON_COMM_TIMEOUT_S", "300", "Seconds after which a collective that a rank has not joined raises an error."},
    {"HOLON_CONTRACT", "", "File of a contract that the program is held to: its boxings are those of the file."},
    {"HOLON_CONTRACT_RECORD", "", "File that the program's boxings are written to as a contract, when it ends."},
    {"HOLON_CUDA_GRAPHS", "1",
     "1 lets nn.Graph record a step's work on a cuda device and launch it as one CUDA graph, 0 launches every kernel "
     "separately."},
    {"HOLON_CUDA_LIBRARY", "",
     "The CUDA backend's library. Empty: libholon_cuda.so next to libholon.so or, if there is none, the one in the "
     "Python package holon_cuda."},
    {"HOLON_CUDA_LINKS", "1",
     "1 lets pipeline stages on cuda devices send data from device to device, 0 sends it through host memory."},
    {"HOLON_CUDNN", "1", "1 lets cuda devices leave convolutions and attention to cuDNN, 0 takes Holon's own kernels."},
    {"HOLON_DATA_DIR", "", "Folder of data sets: MNIST's files are in its subfolder mnist."},
    {"HOLON_DEVICE_LIBRARIES", "",
     "Files of device backends, separated by colons, that are loaded when a device of an unknown type is requested; "
     "the "
     "same on all ranks."},
    {"HOLON_FORK_COPY_MB", "1024",
     "MiB of a rank's tensors that are copied when the process forks. If there are more, the child cannot create "
     "tensors."},
    {"HOLON_FUSED_KERNELS", "1",
     "1 lets nn.Graph compile a chain of element-wise ops into one kernel on a cuda device, 0 runs them one by one."},
    {"HOLON_HEARTBEAT_S", "10", "Seconds without a heartbeat from another host after which it is considered lost."},
    {"HOLON_HOST", "",
     "Name of the host that this rank is on; ranks with different names share no memory. Empty: the machine's host "
     "name."},
    {"HOLON_GRADIENT_BUCKET_MB", "4",
     "MiB of gradients that backward collects before it sums them over the ranks in the background."},
    {"HOLON_ISA", "",
     "Instruction set of the CPU kernels: base, v3 (AVX2) or v4 (AVX-512); empty selects the best one available."},
    {"HOLON_LOG", "", "Comma-separated channels to log to stderr: boxing, dispatch, comm, or all."},
    {"HOLON_MACHINE_COSTS", "",
     "Machine costs for planning boxing, e.g. sync=1e-6,copy=1e10 (holon/cost/machine.h); the others are measured, or "
     "built in after fixed."},
    {"HOLON_MEMORY_LIMIT_MB", "0",
     "MiB of CPU memory that the arrays of a process may use, cached memory included; 0 means no limit."},
    {"HOLON_NET_INTERFACE", "",
     "Network interface to other hosts, e.g. eth0; empty selects the one that reaches MASTER_ADDR."},
    {"HOLON_NETWORK", "gloo", "Library for data between hosts, gloo or ucx; the same on all ranks."},
    {"HOLON_OVERLAP", "",
     "1 lets backward sum gradients over ranks in the background, 0 does not. Empty: where cores or a network are "
     "idle, and on cuda devices."},
    {"HOLON_PARAMETER_BOXING", "keep",
     "When ops redistribute parameters implicitly: keep, only if no signature works without it; gather, whenever it is "
     "cheapest."},
    {"HOLON_RENDEZVOUS_TIMEOUT_S", "60", "Seconds within which all ranks of a world must start."},
    {"HOLON_SEQUENCE_ATTENTION", "",
     "How attention over a sequence that is split over ranks communicates: ring (keys pass by), heads (all-to-all over "
     "heads) or gather (all keys to each rank); the same on all ranks. Empty: what is estimated to be fastest."},
    {"HOLON_SIMULATE", "", "cuda lets \"cuda\" placements and devices run on the CPU, with one warning."},
    {"HOLON_SPIN_US", "", "Microseconds that a waiting rank spins before it sleeps; empty chooses by cores and ranks."},
    {"HOLON_STORE_HOSTED", "0", "1 means that the launcher serves the store at MASTER_PORT and rank 0 does not."},
    {"HOLON_STORE_TOKEN", "",
     "Secret shared by the ranks of one program, required on several hosts; if it is empty, the launcher generates "
     "one."},
    {"HOLON_STORE_TOKEN_FILE", "",
     "File with that secret, for hosts that share a file system; rank 0, or its launcher, creates it if it is "
     "missing."},
    {"HOLON_SYNC", "0",
     "1 waits for every op on a cuda device before the next, so that an error names the op that caused it."},
    {"HOLON_TF32", "0",
     "1 lets cuda devices round the inputs of float32 products and convolutions to TF32, which is several times "
     "faster."},
    {"HOLON_TRANSFER_TOKEN", "",
     "Secret shared by two jobs of which one exports weights and the other receives them, required unless both are on "
     "one host."},
    {"HOLON_TRACE", "",
     "File to which a trace of every rank's ops and boxing is written, for ui.perfetto.dev; empty writes none."},
};

const Setting& find(std::string_view name) {
  for (auto& s : kTable)
    if (name == s.name) return s;
  internal_error(__FILE__, __LINE__, "find", "there is no setting {}", name);
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
