// What a job that exports says that it has.
#include "holon/checkpoint/transfer/manifest.h"

#include "holon/base/error.h"
#include "reader.h"

using namespace holon;

std::vector<std::string> seeds() {
  checkpoint::Manifest m{"{\"dict\":[]}", {"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "[::1]:4"}, "s", {}};
  m.tensors.push_back({{"local", int64, {}, 0, 0}, {}});
  m.tensors.push_back(
      {{"row", bfloat16, {7, 3}, 0, 0}, checkpoint::SavedLayout{"cpu", {3}, {2, 0, 1}, {sbp::split(0)}}});
  m.tensors.push_back({{"grid", float32, {5, 4}, 0, 0},
                       checkpoint::SavedLayout{"cuda", {2, 2}, {3, 1, 0, 2}, {sbp::split(1), sbp::broadcast()}}});
  return {checkpoint::manifest_text(m), checkpoint::manifest_text({"{}", {"a:1"}, "", {}})};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto m = checkpoint::parse_manifest({reinterpret_cast<const char*>(data), size}, "the other job");
    for (auto& t : m.tensors) {
      int64_t elements = 0;
      for (auto& held : checkpoint::held_regions(t)) {
        elements += held.region.shape.numel();
        HOLON_CHECK(!held.ranks.empty(), "nobody holds a region of {}", t.info.name);
        for (int rank : held.ranks)
          HOLON_CHECK(rank >= 0 && static_cast<size_t>(rank) < m.addresses.size(), "rank {}", rank);
        for (int a = 0; a < t.info.shape.size(); ++a)
          HOLON_CHECK(held.region.offset[a] >= 0 && held.region.shape[a] > 0 &&
                          held.region.shape[a] <= t.info.shape[a] - held.region.offset[a],
                      "a region outside {}", t.info.name);
      }
      HOLON_CHECK(elements == t.info.shape.numel(), "{} of {} elements", elements, t.info.shape.numel());
    }
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kInternal) throw;
  }
  return 0;
}
