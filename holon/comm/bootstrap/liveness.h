// Whether the system at the other end of a TCP connection is still there. It answers for its programs: one that is
// stopped or busy is alive, one whose host has lost its power or its cable is not.
#pragma once

namespace holon::comm {

// After how many seconds without a sign of life another host counts as lost (HOLON_HEARTBEAT_S).
double heartbeat_limit_s();

// The system looks after an idle connection. With closes, the connection fails (ETIMEDOUT) after about limit_s of
// silence, else only is_silent() shows it.
void keep_alive(int socket, double limit_s, bool closes = true);

// Whether what was sent, or the system's questions on a connection of keep_alive(), have not been answered for limit_s.
bool is_silent(int socket, double limit_s);

}  // namespace holon::comm
