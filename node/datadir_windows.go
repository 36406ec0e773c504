package node

import "net"

// listenPrivate makes a socket; the data dir's own access rules protect it.
func listenPrivate(path string) (net.Listener, error) { return net.Listen("unix", path) }
