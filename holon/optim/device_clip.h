// Clipping by norm of gradients on devices: the norm and the factor stay in a device's memory, and the host waits for
// nothing.
#pragma once

#include <span>
#include <vector>

#include "holon/boxing/prepared.h"
#include "holon/optim/clip.h"

namespace holon::optim {

// Where gradients are clipped together: the device of this rank whose memory has the norm, or the CPU, by
// clipping_of(). specs[i]: the layout of a gradient; nullptr: local, on devices[i]. On a device are gradients that are
// all local and on one, and global ones whose placements are of devices and have all ranks; the answer is the same on
// all ranks then.
Device clip_device(std::span<const GlobalSpec* const> specs, std::span<const Device> devices);

// Prepared once, for gradients of these layouts, and run many times. Belongs to the rank that made it.
class DeviceClipping {
 public:
  // Pre: clip is by norm, clip_device() is `device` and not the CPU; no layout has a partial sum. wide: as
  // clipping_of().
  DeviceClipping(const Clip& clip, std::span<const GlobalSpec* const> specs, bool wide, Device device);

  // result: float64 [2] on the device: the norm, and what the gradients are to be multiplied by, at most 1. Every rank
  // gets the same bits. parts[i]: this rank's part of gradient i. Collective if any is split.
  void run(std::span<const Array> parts, const Array& result) const;
  // Of these collectives, as boxing::Prepared has them.
  std::vector<std::span<const int>> collectives() const;
  bool communicates_on_devices() const;  // or not at all
  void bind() const;

 private:
  // Gradients about which the ranks of a placement tell each other.
  struct Row {
    size_t first, end;        // among order_
    boxing::Prepared gather;  // float64 [ranks, tensors]
  };
  Clip clip_;
  bool wide_;
  Device device_;
  std::vector<size_t> order_;  // gradients: first those that every rank has whole, then those of rows_
  std::vector<bool> counts_;   // in that order: not a copy of what another rank has
  size_t alone_ = 0;           // how many are in none of rows_
  std::vector<Row> rows_;
  // Made by the first run(). found_: float64, of this rank's parts, in that order; all_: what rows_ gather.
  mutable Array found_;
  mutable std::vector<Array> all_;
};

}  // namespace holon::optim
