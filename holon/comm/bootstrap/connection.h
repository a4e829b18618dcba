// TCP connections on which a wait has an end: the host language may end it, too.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "holon/comm/bootstrap/handshake.h"
#include "holon/comm/bootstrap/socket.h"
#include "holon/comm/bootstrap/tcp.h"

namespace holon::comm {

using Deadline = std::chrono::steady_clock::time_point;
Deadline after(double seconds);

// Called about ten times a second by functions that wait. May throw, which ends the wait.
using WhileWaiting = std::function<void()>;
// The host language's turn (Ctrl-C).
void look_at_host_language();

// Returns when the socket is ready. False: the time is over.
bool wait_ready(int fd, short events, Deadline until, const WhileWaiting& waiting = look_at_host_language);

enum class Io { kDone, kLate, kClosed };
Io read_all(int fd, void* to, size_t size, Deadline until, const WhileWaiting& waiting = look_at_host_language);
Io write_all(int fd, const void* from, size_t size, Deadline until,
             const WhileWaiting& waiting = look_at_host_language);

// Connected within the time, or not at all; errno says why.
Fd connect_once(const Address& address, Deadline until, const WhileWaiting& waiting = look_at_host_language);
// The handshake of the side that connects. kGoesOn: the other side has closed the connection, or is silent.
Handshake::State greet(int fd, const std::string& token, const std::string& purpose, uint32_t from, Deadline until,
                       const WhileWaiting& waiting = look_at_host_language);

}  // namespace holon::comm
