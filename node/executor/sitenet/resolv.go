package sitenet

import (
	"net/netip"
	"strings"
)

// maxResolvers is what the C library reads of them.
const maxResolvers = 3

// nameServers reads the lines of a resolv.conf that name servers.
func nameServers(conf []byte) []netip.Addr {
	var out []netip.Addr
	for line := range strings.Lines(string(conf)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" || len(out) == maxResolvers {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			out = append(out, a)
		}
	}
	return out
}
