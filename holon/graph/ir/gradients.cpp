#include "holon/graph/ir/gradients.h"

#include "holon/optim/device_clip.h"

namespace holon::graph {

std::map<GradClip::Of, const Value*> taken_gradients(const Graph& g) {
  std::map<GradClip::Of, const Value*> gradients;
  for (const Node& n : g.nodes)
    for (size_t i = 0; n.kind == NodeKind::kUpdate && i < n.in.size(); ++i)
      if (n.in[i] != kNoValue) gradients[{n.target, static_cast<int32_t>(i)}] = &g.value(n.in[i]);
  return gradients;
}

Device clip_device(const GradClip& clip, const std::map<GradClip::Of, const Value*>& gradients) {
  std::vector<const GlobalSpec*> specs;
  std::vector<Device> devices;
  for (const GradClip::Of& at : clip.of) {
    specs.push_back(gradients.at(at)->spec);
    devices.push_back(gradients.at(at)->device);
  }
  return optim::clip_device(specs, devices);
}

}  // namespace holon::graph
