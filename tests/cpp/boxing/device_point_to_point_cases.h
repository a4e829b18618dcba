// Transfers between devices, by ranks that are threads or processes with a device each. Each throws what is wrong. On
// the emulator or on devices; links are used as soon as they are there, and before that the host's memory.
#pragma once

namespace holon::testing_boxing {

// Pairs of placements and layouts, and crossings between devices and the CPU, against the CPU. For a world of four.
void check_device_pairs();

// Several sends under way between the same ranks, received in every order. For two ranks or more.
void check_device_orders();

// Sends both ways and round in a circle before anybody receives, from the first one on, when no link is made. For three
// or more.
void check_device_circles();

// A pipeline of one rank a stage in the order of 1F1B, through device memory that is used again.
void check_device_pipeline();

// Data goes over the links and never through the host, and neither a send nor a release waits for a receiver. For two
// or more.
void check_device_links();

// The rank's second thread has links of its own. For two or more.
void check_device_background();

// What goes wrong: rank 0 raises, and the text names rank 1, which is killed before it sends, or when it has; never
// receives; or is killed before it does. For two ranks that are processes, over links.
void sender_dies();
void sender_dies_after_sending();
void receiver_does_not_come();
void receiver_dies();

}  // namespace holon::testing_boxing
