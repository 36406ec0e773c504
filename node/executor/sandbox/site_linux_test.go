package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/exectest"
	"github.com/forgeyard/forgeyard-node/node/executor/sitenet"
)

// plant is a site whose addresses stand on this machine's loopback: what the network dials
// is turned to servers of the test, and remembered.
type plant struct {
	tcp, udp string
	late     chan struct{} // a dial waits for the end of its job

	mu     sync.Mutex
	dialed []string
}

func newPlant(t *testing.T) *plant {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); u.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // says the upper-case form of all it hears, once all is said
				defer c.Close()
				b, _ := io.ReadAll(c)
				_, _ = c.Write([]byte(strings.ToUpper(string(b))))
			}()
		}
	}()
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo([]byte(strings.ToUpper(string(b[:n]))), from)
		}
	}()
	return &plant{tcp: l.Addr().String(), udp: u.LocalAddr().String(), late: make(chan struct{}, 1)}
}

func (p *plant) dial(ctx context.Context, network, to string) (net.Conn, error) {
	p.mu.Lock()
	p.dialed = append(p.dialed, network+" "+to)
	p.mu.Unlock()
	switch {
	case strings.HasSuffix(to, ":9"):
		return nil, fmt.Errorf("nobody is there")
	case strings.HasSuffix(to, ":7"): // answers in the moment in which the job has ended
		p.late <- struct{}{}
		<-ctx.Done()
		return new(net.Dialer).DialContext(context.WithoutCancel(ctx), "tcp", p.tcp)
	}
	at := p.tcp
	if network == "udp" {
		at = p.udp
	}
	return new(net.Dialer).DialContext(ctx, network, at)
}

// onSite is a sandbox whose site is the plant, or a test that says what it lacks.
func onSite(t *testing.T, p *plant, allow ...string) *exectest.Bench {
	t.Helper()
	if err := sitenet.Usable(); err != nil {
		needs.Lacking(t, "no site network: %v", err)
	}
	var nets []netip.Prefix
	for _, a := range allow {
		nets = append(nets, netip.MustParsePrefix(a))
	}
	e := with(t, Config{SiteNetworks: func() []netip.Prefix { return nets }}).(*Executor)
	e.dial, e.way = p.dial, func(netip.Addr) string { return "" }
	return exectest.New(t, e)
}

// client is where a workload finds this program, as one that makes connections.
const (
	client    = "exec /opt/client"
	clientEnv = "FORGEYARD_TEST_CLIENT"
)

// asks lets the client make a connection: tcp, udp or hold, and to where.
func asks(t *testing.T, what string) func(*executor.Request) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return func(r *executor.Request) {
		r.ReadOnly = append(r.ReadOnly, executor.Bind{Host: self, Inside: "/opt/client"})
		r.Env = append(r.Env, clientEnv+"="+what)
	}
}

// TestMain lets the test binary be a workload.
func TestMain(m *testing.M) {
	if what := os.Getenv(clientEnv); what != "" {
		how, to, _ := strings.Cut(what, " ")
		fmt.Println(visit(how, to))
		if how == "hold" {
			select {}
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// visit makes a connection and says how it went.
func visit(how, to string) string {
	switch how {
	case "names": // each is asked for from a port of its own
		n := 0
		for range 400 {
			c, err := net.Dial("udp", to)
			if err != nil {
				return err.Error()
			}
			_ = c.SetDeadline(time.Now().Add(30 * time.Second))
			if _, err := io.WriteString(c, "name"); err == nil {
				if _, err = c.Read(make([]byte, 16)); err == nil {
					n++
				}
			}
		}
		return fmt.Sprintf("%d answers, then %s", n, visit("tcp", strings.Replace(to, ":53", ":80", 1)))
	case "hold":
		for range 8 {
			if _, err := net.Dial("tcp", to); err != nil {
				return err.Error()
			}
		}
		return "up"
	case "wait":
		fmt.Println("up")
		_, err := net.Dial("tcp", to)
		return fmt.Sprint(err)
	}
	c, err := net.DialTimeout(how, to, 10*time.Second)
	if err != nil {
		var e syscall.Errno
		if errors.As(err, &e) {
			return e.Error()
		}
		return err.Error()
	}
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	var got []byte
	if how == "tcp" {
		_, err = io.WriteString(c, strings.Repeat("hello", 40_000))
		if err == nil {
			err = c.(*net.TCPConn).CloseWrite()
		}
		if err == nil {
			got, err = io.ReadAll(c)
		}
	} else {
		got = make([]byte, 1<<16)
		_, err = io.WriteString(c, strings.Repeat("hello", 4_000))
		if err == nil {
			var n int
			n, err = c.Read(got)
			got = got[:n]
		}
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(len(got), " ", string(got[:5]))
}

func site(r *executor.Request) { r.Network = job.NetworkSite }

// TestSiteNetwork: a job reaches the site's networks by TCP and UDP, over both IPs, and
// nothing else: not the node itself, not the world, not by pings.
func TestSiteNetwork(t *testing.T) {
	p := newPlant(t)
	b := onSite(t, p, "10.77.0.0/24", "fd77::/64", "127.0.0.1/32")
	for _, x := range []struct{ name, ask, want string }{
		{"tcp", "tcp 10.77.0.5:80", "200000 HELLO"},
		{"tcp 6", "tcp [fd77::5]:80", "200000 HELLO"},
		{"udp", "udp 10.77.0.5:53", "20000 HELLO"},
		{"udp 6", "udp [fd77::5]:53", "20000 HELLO"},
		{"a port that is closed", "tcp 10.77.0.5:9", "connection refused"},
		{"many names, then a connection", "names 10.77.0.5:53", "400 answers, then 200000 HELLO"},
		{"another network", "tcp 10.78.0.5:80", "network is unreachable"},
		{"metadata", "tcp 169.254.169.254:80", "network is unreachable"},
		{"the node's loopback is its own", "tcp " + p.tcp, "connection refused"},
	} {
		r := b.MustStart(client, site, asks(t, x.ask))
		exit := b.Finish(r)
		if got := strings.TrimSpace(r.Out.String()); got != x.want {
			t.Errorf("%s: %+v %q %s, want %q", x.name, exit, got, r.Err, x.want)
		}
	}
	r := b.MustStart(`tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d " " | sort | tr "\n" " "; cat /etc/resolv.conf`, site)
	b.Finish(r)
	if r.Out.String() != "lo site0 " {
		t.Errorf("it has %q", r.Out)
	}
	for _, d := range p.dialed {
		if a := netip.MustParseAddrPort(strings.Fields(d)[1]); !strings.HasPrefix(a.Addr().String(), "10.77.0.") && !strings.HasPrefix(a.Addr().String(), "fd77:") {
			t.Errorf("dialled %s", d)
		}
	}
}

// TestSiteNetworkEndsWithTheJob: a job that is killed leaves neither a device, a thread in
// its namespace, nor a connection.
func TestSiteNetworkEndsWithTheJob(t *testing.T) {
	p := newPlant(t)
	b := onSite(t, p, "10.77.0.0/24")
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		r := b.MustStart(client, site, asks(t, "hold 10.77.0.5:80"))
		r.Out.Await(t, "up")
		b.Kill(r)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range threads {
		if ns, err := os.Readlink("/proc/self/task/" + d.Name() + "/ns/net"); err == nil && ns != here {
			t.Errorf("thread %s stands in %s, the process in %s", d.Name(), ns, here)
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + d.Name()); strings.Contains(to, "/dev/net/tun") || strings.HasPrefix(to, "/proc/") && strings.HasSuffix(to, "/ns/net") {
			t.Errorf("descriptor %s is still %s", d.Name(), to)
		}
	}
}

// TestSiteNetworkEndsInTheMiddleOfADial: what answers when the job has just gone does not hold
// up its end.
func TestSiteNetworkEndsInTheMiddleOfADial(t *testing.T) {
	p := newPlant(t)
	b := onSite(t, p, "10.77.0.0/24")
	r := b.MustStart(client, site, asks(t, "wait 10.77.0.5:7"))
	<-p.late
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := r.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.Done():
	case <-ctx.Done():
		t.Error("its end is not told")
	}
}

// TestSiteNetworkOnlyByPolicy: without a network that policy names there is none.
func TestSiteNetworkOnlyByPolicy(t *testing.T) {
	if _, err := exectest.New(t, fresh(t)).Start("exit 0", site); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("%v", err)
	}
}
