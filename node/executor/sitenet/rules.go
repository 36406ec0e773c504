// Package sitenet is the network of a job that asks for `network: site`: it decides which
// addresses such a job reaches, and carries its connections there.
//
// The job stands in a network namespace of its own whose only way out is a TUN device.
// What leaves through it ends in a network stack inside the daemon, which asks the rules,
// and only then dials the address itself. So nothing of the machine changes: no forwarding,
// no address translation, no filter that another tool could flush.
//
//	reached      TCP and UDP to the node's policy.site_networks
//	never        the node itself, whatever is listed: not by loopback, not by an address that
//	             the kernel keeps for itself, nor by the broadcast of a network; link-local addresses (a cloud's metadata) unless a listed prefix
//	             lies within them; multicast and broadcast; anything else of IP, pings included
//
// Nothing comes in: nobody can dial the job.
package sitenet

import "net/netip"

// Rules say what a job reaches.
type Rules struct {
	// Allow are the networks of the site. None: nothing is reached.
	Allow []netip.Prefix
	// Way says why what is sent to an address would not go to one other machine, asked at each
	// connection, since addresses and routes change. Nil: the kernel says it.
	Way func(netip.Addr) string
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
	way := r.Way
	if way == nil {
		way = kernelsWay
	}
	return way(a)
}
