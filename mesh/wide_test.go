package mesh

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// counted counts what would be system calls.
type counted struct {
	net.Conn
	writes atomic.Int64
	broken atomic.Bool
	stall  chan struct{} // nil, or closed by a write that ends no more by itself
}

var errBroken = errors.New("broken")

func (c *counted) Write(b []byte) (int, error) {
	if c.broken.Load() {
		return 0, errBroken
	}
	c.writes.Add(1)
	if c.stall != nil && len(b) > tlsPlainMax {
		close(c.stall)
		for {
			if n, err := c.Conn.Write(b); err != nil {
				return n, err
			}
		}
	}
	return c.Conn.Write(b)
}

// end is one end of a direct connection and what lies under it.
type end struct {
	directConn
	raw *counted
}

// widePair is a direct connection over TCP that both ends have opened.
func widePair(t *testing.T) (near, far *end) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	b, err := l.Accept()
	must(t, err)
	_, id := rawHost(t)
	key, err := id.key()
	must(t, err)
	own, err := tlsIdentity(key)
	must(t, err)
	make := func(c net.Conn, side func(net.Conn, *tls.Config) *tls.Conn) *end {
		raw := &counted{Conn: c}
		cfg, keys := own.ConfigForPeer("")
		go func() { <-keys }()
		over := side(&wideConn{Conn: raw}, cfg)
		t.Cleanup(func() { _ = over.NetConn().Close() })
		return &end{directConn{Conn: over, wide: over.NetConn().(*wideConn)}, raw}
	}
	near, far = make(a, tls.Client), make(b, tls.Server)
	var wg sync.WaitGroup
	for _, e := range []*end{near, far} {
		wg.Go(func() {
			if err := e.Conn.(*tls.Conn).Handshake(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return near, far
}

// The records of a large write leave together; what is small goes at once, and who is silent
// keeps no buffer.
func TestLargeWritesAreFewCalls(t *testing.T) {
	near, far := widePair(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	w0 := near.raw.writes.Load()
	done := make(chan error, 1)
	go func() {
		for range 8 {
			if _, err := near.Write(sent); err != nil {
				done <- err
				return
			}
		}
		_, err := near.Write([]byte("end"))
		done <- err
	}()
	got := make([]byte, len(sent))
	for range 8 {
		if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("other bytes came, or none: %v", err)
		}
	}
	if _, err := io.ReadFull(far, got[:3]); err != nil || string(got[:3]) != "end" {
		t.Fatalf("%q: %v", got[:3], err)
	}
	must(t, <-done)
	// The first 128 KiB of a connection are in smaller records.
	if writes := near.raw.writes.Load() - w0; writes < 8*4+1 || writes > 8*5+1 {
		t.Errorf("8 MiB left with %d writes", writes)
	}
	if near.wide.out != nil {
		t.Error("a buffer is kept by a connection that is silent")
	}
}

// Writers at the same time: whole pieces in some order, none lost and none waiting for the
// next.
func TestWritersTogether(t *testing.T) {
	near, far := widePair(t)
	const writers, each, size = 4, 20, 40_000
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for range each {
				if _, err := near.Write(bytes.Repeat([]byte{byte(i)}, size/(1+i*i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var seen [writers]int
	buf := make([]byte, 64<<10)
	must(t, far.SetReadDeadline(time.Now().Add(20*time.Second)))
	want := 0
	for i := range writers {
		want += each * (size / (1 + i*i))
	}
	for n := 0; n < want; {
		k, err := far.Read(buf)
		must(t, err)
		for _, b := range buf[:k] {
			seen[b]++
		}
		n += k
	}
	wg.Wait()
	for i, n := range seen {
		if n != each*(size/(1+i*i)) {
			t.Errorf("%d bytes of writer %d", n, i)
		}
	}
}

// Whoever wrote hears of a connection that broke, though TLS gave its records away before.
func TestLargeWriteThatFails(t *testing.T) {
	near, _ := widePair(t)
	near.raw.broken.Store(true)
	if n, err := near.Write(make([]byte, 100_000)); !errors.Is(err, errBroken) || n != 0 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	near.raw.broken.Store(false)
	if _, err := near.Write([]byte("later")); !errors.Is(err, errBroken) {
		t.Fatalf("it goes on behind a hole: %v", err)
	}
}

// A connection whose other end reads nothing is closed at once: the expulsion of a peer waits
// for it, and so does whoever carries content.
func TestCloseEndsALargeWrite(t *testing.T) {
	near, _ := widePair(t)
	near.m = &Mesh{table: newTable()}
	near.raw.stall = make(chan struct{})
	wrote, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := near.Write(make([]byte, 200_000)) // all of it is gathered, and leaves behind TLS's back
		wrote <- err
	}()
	<-near.raw.stall
	go func() { closed <- near.Close() }()
	select {
	case err := <-closed:
		must(t, err)
	case <-time.After(2 * time.Second):
		t.Fatal("it waits for who reads nothing")
	}
	if err := <-wrote; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the write ended with %v", err)
	}
	if _, err := near.Write(make([]byte, 1<<20)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("one after it with %v", err)
	}
}
