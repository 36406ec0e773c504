package sitenet

import (
	"net/netip"
	"testing"
)

func prefixes(t *testing.T, ss ...string) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	for _, s := range ss {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// TestJudge: what a job on the site's network reaches, and why not.
func TestJudge(t *testing.T) {
	way := func(a netip.Addr) string {
		if a == netip.MustParseAddr("10.20.0.7") || a == netip.MustParseAddr("fd00::7") {
			return "it is this node"
		}
		return ""
	}
	site := Rules{Allow: prefixes(t, "10.20.0.0/24", "fd00::/64"), Way: way}
	wide := Rules{Allow: prefixes(t, "0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"), Way: way}
	cloud := Rules{Allow: prefixes(t, "169.254.169.254/32"), Way: way}
	const (
		none  = "it is in none of policy.site_networks"
		other = "it is no address of another machine"
		near  = "it is link-local, and no listed network lies within those addresses"
		self  = "it is this node"
	)
	for _, x := range []struct {
		r    Rules
		addr string
		want string
	}{
		{site, "10.20.0.9", ""},
		{site, "::ffff:10.20.0.9", ""},
		{site, "fd00::9", ""},
		{site, "10.20.1.9", none},
		{site, "8.8.8.8", none},
		{site, "127.0.0.1", none},
		{site, "169.254.169.254", none},
		{site, "10.20.0.7", self},
		{site, "::ffff:10.20.0.7", self},
		{site, "fd00::7", self},
		{Rules{}, "10.20.0.9", none},
		{wide, "8.8.8.8", ""},
		{wide, "127.0.0.1", other},
		{wide, "127.9.9.9", other},
		{wide, "::1", other},
		{wide, "::ffff:127.0.0.1", other},
		{wide, "0.0.0.0", other},
		{wide, "::", other},
		{wide, "224.0.0.1", other},
		{wide, "ff02::1", other},
		{wide, "255.255.255.255", other},
		{wide, "169.254.169.254", near},
		{wide, "fe80::1", near},
		{cloud, "169.254.169.254", ""},
		{cloud, "169.254.169.253", none},
	} {
		if got := x.r.Judge(netip.MustParseAddr(x.addr)); got != x.want {
			t.Errorf("%s within %v: %q, want %q", x.addr, x.r.Allow, got, x.want)
		}
	}
}

// TestResolver: only name servers that the job reaches are told to it.
func TestResolver(t *testing.T) {
	r := Rules{Allow: prefixes(t, "10.20.0.0/24"), Way: func(netip.Addr) string { return "" }}
	stub := []byte("nameserver 127.0.0.53\noptions edns0\n")
	full := []byte("# a comment\nsearch lan\nnameserver 10.20.0.1\nnameserver 1.1.1.1\nnameserver\nnameserver x\n nameserver 10.20.0.2 \noptions ndots:2 timeout:1\nnameserver 10.20.0.3\nnameserver 10.20.0.4\n")
	const want = "search lan\nnameserver 10.20.0.1\nnameserver 10.20.0.2\noptions ndots:2 timeout:1\nnameserver 10.20.0.3\n"
	if got := r.Resolver(full, stub); got != want {
		t.Errorf("%q", got)
	}
	if got := r.Resolver(stub, full); got != want {
		t.Errorf("behind a service of the machine: %q", got)
	}
	if got := r.Resolver(stub, nil); got != "" {
		t.Errorf("%q", got)
	}
}
