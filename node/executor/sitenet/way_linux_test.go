package sitenet

import (
	"net"
	"net/netip"
	"testing"
)

// TestKernelsWay: none of this machine's own addresses, and no broadcast, is one of another
// machine.
func TestKernelsWay(t *testing.T) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		n := a.(*net.IPNet)
		own, _ := netip.AddrFromSlice(n.IP)
		if own = own.Unmap(); own.IsLinkLocalUnicast() {
			continue // no route without its device
		}
		if why := kernelsWay(own); why != "it is this node" {
			t.Errorf("%s: %q", own, why)
		}
		if ones, bits := n.Mask.Size(); bits == 32 && ones < 31 {
			last := n.IP.To4()
			cast := make([]byte, 4)
			for i := range cast {
				cast[i] = last[i] | ^n.Mask[i]
			}
			b, _ := netip.AddrFromSlice(cast)
			if why := kernelsWay(b); why != "it is no address of another machine" {
				t.Errorf("broadcast %s: %q", b, why)
			}
		}
	}
	if why := kernelsWay(netip.MustParseAddr("127.255.255.255")); why == "" {
		t.Error("the broadcast of the loopback is another machine's")
	}
}
