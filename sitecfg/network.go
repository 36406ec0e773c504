package sitecfg

import (
	"fmt"
	"net/netip"

	"github.com/forgeyard/forgeyard-node"
)

// siteNetwork reads one of policy.site_networks: a prefix, or one address.
func siteNetwork(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if a, aerr := netip.ParseAddr(s); err != nil && aerr == nil {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	switch a := p.Addr(); {
	case err != nil || a.Zone() != "" || a.Is4In6():
		return p, fmt.Errorf("%q is no network; write a prefix like 10.20.0.0/24, or an address", forgeyard.Clip(s, 60))
	case p != p.Masked():
		return p, fmt.Errorf("%s has bits behind its length; write %s", p, p.Masked())
	case p.Bits() == 0:
		return p, fmt.Errorf("%s is the whole world; policy.network: host allows that", p)
	case a.IsLoopback() || a.IsMulticast() || a.IsUnspecified():
		return p, fmt.Errorf("%s is no network of a site; no job reaches loopback or multicast addresses", p)
	}
	return p, nil
}

// Site lists what a job reaches that asks for the site's network; none where the policy
// does not allow it.
func (p PolicyConfig) Site() []netip.Prefix {
	var out []netip.Prefix
	if width(p.Network) < 1 {
		return nil
	}
	for _, s := range p.SiteNetworks {
		if n, err := siteNetwork(s); err == nil { // checked when it was read
			out = append(out, n)
		}
	}
	return out
}

func (c *check) siteNetworks(p PolicyConfig) {
	c.int("policy.site_networks", len(p.SiteNetworks), 0, maxList)
	for i, s := range p.SiteNetworks {
		_, err := siteNetwork(s)
		c.err(fmt.Sprintf("policy.site_networks[%d]", i), err)
	}
	if p.Network == "site" && len(p.SiteNetworks) == 0 {
		c.add("policy.network", "is site, and policy.site_networks names no network; list what jobs may reach, as 10.20.0.0/24")
	}
}
