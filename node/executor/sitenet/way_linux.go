package sitenet

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernelsWay asks the kernel what it would do with a packet to the address. It knows more
// than the addresses of interfaces: those that are routed to this machine, and the broadcast
// of each network, which reaches this machine too.
func kernelsWay(a netip.Addr) string {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil {
		return "this machine has no way there: " + err.Error()
	}
	for _, r := range routes {
		switch r.Type {
		case unix.RTN_UNICAST:
		case unix.RTN_LOCAL:
			return "it is this node"
		default:
			return "it is no address of another machine"
		}
	}
	return ""
}
