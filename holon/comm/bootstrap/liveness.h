// Whether the system at the other end of a TCP connection is still there. It answers for its programs: one that is
// stopped or busy is alive, one whose host has lost its power or its cable is not.
#pragma once

namespace holon::comm {

// After how many seconds without a sign of life another host counts as lost (HOLON_HEARTBEAT_S).
double heartbeat_limit_s();

// The system looks after an idle connection, which then fails (ETIMEDOUT) within about limit_s.
void keep_alive(int socket, double limit_s);

// Whether what was sent has not been acknowledged for limit_s. (No system looks at that so soon by itself.)
bool is_silent(int socket, double limit_s);

}  // namespace holon::comm
