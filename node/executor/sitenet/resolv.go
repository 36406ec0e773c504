package sitenet

import (
	"fmt"
	"net/netip"
	"strings"
)

// maxResolvers is what the C library reads of them.
const maxResolvers = 3

// Resolver makes a job's resolv.conf of the machine's: the name servers that the job reaches,
// and how names are looked for. confs are read in turn until one names such a server: where a
// service of the machine answers on its loopback, the servers that it asks stand in another.
func (r Rules) Resolver(confs ...[]byte) string {
	for _, conf := range confs {
		if text, found := r.resolver(conf); found {
			return text
		}
	}
	return ""
}

func (r Rules) resolver(conf []byte) (text string, found bool) {
	var b strings.Builder
	servers := 0
	for line := range strings.Lines(string(conf)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(f[1]); err == nil && servers < maxResolvers && r.Judge(a) == "" {
				servers++
				fmt.Fprintf(&b, "nameserver %s\n", a)
			}
		case "search", "domain", "options":
			fmt.Fprintln(&b, strings.Join(f, " "))
		}
	}
	return b.String(), servers > 0
}
