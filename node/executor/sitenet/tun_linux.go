package sitenet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// device is what the job calls its way out.
const device = "site0"

// mtu is as large as IP allows: the packets meet no wire.
const mtu = 65520

// The job's own addresses. The first is of a block that is used inside one machine only
// (RFC 7335), so it meets none of a site; the second is a unique local one.
var (
	inner4 = netip.MustParseAddr("192.0.0.2")
	inner6 = netip.MustParseAddr("fdf0:7267:6579::2")
)

// Usable says why this machine cannot give such a network, or nil.
func Usable() error {
	if os.Geteuid() != 0 {
		return forgeyard.Errorf("site network", forgeyard.Unavailable, "the daemon is not root")
	}
	if err := unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK); err != nil {
		return forgeyard.E("site network", forgeyard.Unavailable, fmt.Errorf("/dev/net/tun: %w", err)).WithHint("load the kernel's tun module, or let the container have the device")
	}
	return nil
}

// openTUN makes the device in the network namespace of a process, a child of parent, and
// routes the networks to it.
func openTUN(pid, parent int, routes []netip.Prefix) (*os.File, error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	// Asked after the namespace was opened: had the process ended and another its number,
	// that one would be no child of the parent.
	if p, err := executor.ReadProc(pid); err != nil || p.PPID != parent {
		return nil, fmt.Errorf("process %d ended", pid)
	}
	var tun *os.File
	err = inNamespace(ns, func() error {
		if tun, err = newTUN(); err != nil {
			return err
		}
		if err := configure(routes); err != nil {
			tun.Close()
			return err
		}
		return nil
	})
	return tun, err
}

// inNamespace runs do on a thread that stands in the network namespace.
func inNamespace(ns *os.File, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		if same(home, ns) {
			runtime.UnlockOSThread()
			done <- errors.New("the workload has no network namespace of its own")
			return
		}
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
			err = do()
		}
		// A thread that cannot come back is not given to other goroutines: it ends with this one.
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

func same(a, b *os.File) bool {
	sa, ea := a.Stat()
	sb, eb := b.Stat()
	return ea != nil || eb != nil || os.SameFile(sa, sb)
}

func newTUN() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(device)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("TUN device: %w", err)
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun"), nil
}

// configure gives the device its addresses and routes, in the thread's namespace.
func configure(routes []netip.Prefix) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(device)
	if err != nil {
		return err
	}
	if err := errors.Join(h.LinkSetMTU(link, mtu), h.LinkSetUp(link)); err != nil {
		return err
	}
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(inner4, 32))}); err != nil {
		return err
	}
	if hasV6(routes) {
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(inner6, 128)), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("IPv6: %w", err)
		}
	}
	for _, p := range routes {
		if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(p)}); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("route to %s: %w", p, err)
		}
	}
	return nil
}

func hasV6(ps []netip.Prefix) bool {
	for _, p := range ps {
		if p.Addr().Is6() {
			return true
		}
	}
	return false
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
