// Package sitenet is the network of a job that asks for `network: site`: it decides which
// addresses such a job reaches, and carries its connections there.
//
// The job stands in a network namespace of its own whose only way out is a TUN device.
// What leaves through it ends in a network stack inside the daemon, which asks the rules,
// and only then dials the address itself. So nothing of the machine changes: no forwarding,
// no address translation, no filter that another tool could flush.
//
//	reached      TCP and UDP to the node's policy.site_networks
//	never        the node itself, whatever is listed: not by loopback, not by one of its own
//	             addresses; link-local addresses (a cloud's metadata) unless a listed prefix
//	             lies within them; multicast and broadcast; anything else of IP, pings included
//
// Nothing comes in: nobody can dial the job.
package sitenet

import (
	"net"
	"net/netip"
)

// Rules say what a job reaches.
type Rules struct {
	// Allow are the networks of the site. None: nothing is reached.
	Allow []netip.Prefix
	// Own are the addresses of this machine, asked for at each connection, since they
	// change. Nil: those of its interfaces.
	Own func() ([]netip.Addr, error)
}

// Judge says why a job must not reach the address, or nothing.
func (r Rules) Judge(a netip.Addr) string {
	a = a.Unmap()
	allowed, near := false, false
	for _, p := range r.Allow {
		if p.Contains(a) {
			allowed = true
			near = near || p.Addr().IsLinkLocalUnicast()
		}
	}
	switch {
	case !allowed:
		return "it is in none of policy.site_networks"
	case a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "it is no address of another machine"
	case a.IsLinkLocalUnicast() && !near:
		return "it is link-local, and no listed network lies within those addresses"
	}
	own := r.Own
	if own == nil {
		own = interfaces
	}
	mine, err := own()
	if err != nil {
		return "this machine's own addresses cannot be read: " + err.Error()
	}
	for _, m := range mine {
		if m.Unmap().WithZone("") == a {
			return "it is this node"
		}
	}
	return ""
}

// interfaces are the addresses of this machine.
func interfaces() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var own []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				own = append(own, ip)
			}
		}
	}
	return own, nil
}

// Resolvers are the name servers of a resolv.conf that a job reaches; names are asked from
// no other.
func (r Rules) Resolvers(conf []byte) []netip.Addr {
	var out []netip.Addr
	for _, a := range nameServers(conf) {
		if r.Judge(a) == "" {
			out = append(out, a)
		}
	}
	return out
}
