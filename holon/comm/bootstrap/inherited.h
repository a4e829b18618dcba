// Sockets that a forked child must not hold open. A DataLoader's worker inherits its rank's connections: as long as it
// runs, those on the other side would not hear that the rank has ended, and a port would stay in use.
#pragma once

namespace holon::comm {

// From now on a child that fork() makes has /dev/null in the socket's place, and a program that is run instead of this
// one has nothing. For as long as the descriptor is this very socket: nobody has to say when it is closed.
void close_in_children(int socket);

}  // namespace holon::comm
