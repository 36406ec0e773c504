package bulk

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"
	"weak"
)

// Buffers are bounded, the warm one goes out first, and none stays when nothing is out.
func TestPool(t *testing.T) {
	p := NewPool(3)
	ctx, cancel := context.WithCancel(t.Context())
	take := func() (*byte, func()) {
		t.Helper()
		b, release, err := p.get(ctx, maxBody)
		if err != nil || len(b) != maxBody {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		b[0], b[maxBody-1] = 1, 1
		return &b[0], release
	}
	one, freeOne := take()
	two, freeTwo := take()
	if one == two {
		t.Fatal("one buffer went out twice")
	}
	_, freeThree := take()
	freeOne()
	freeTwo()
	again, freeTwo := take()
	if again != two {
		t.Error("another buffer than the warm one went out")
	}
	_, freeOne = take()
	time.AfterFunc(time.Millisecond, cancel)
	if _, _, err := p.get(ctx, maxBody); !errors.Is(err, context.Canceled) {
		t.Errorf("a fourth buffer of three: %v", err)
	}
	freeOne()
	freeTwo()
	freeThree()
	gone := weak.Make(one)
	one, two, again = nil, nil, nil
	for range 3 { // a sync.Pool lets go with the second collection
		runtime.GC()
	}
	if gone.Value() != nil {
		t.Error("buffers stay while nothing is out")
	}
	runtime.KeepAlive(p)
}

// Small frames wait for nobody.
func TestPoolSmall(t *testing.T) {
	p := NewPool(1)
	_, free, err := p.get(t.Context(), maxBody)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	b, freeSmall, err := p.get(t.Context(), smallBuffer)
	if err != nil || len(b) != smallBuffer {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	freeSmall()
}

// Buffers do not overlap, and lie where large pages can.
func TestNewBuffers(t *testing.T) {
	all := newBuffers(slabBlocks)
	for i, b := range all {
		for k := range b {
			if b[k] != 0 {
				t.Fatalf("buffer %d holds %d at %d", i, b[k], k)
			}
			b[k] = byte(i + 1)
		}
	}
	for i, b := range all {
		if b[0] != byte(i+1) || b[maxBody-1] != byte(i+1) {
			t.Errorf("buffer %d was written through another", i)
		}
	}
	if runtime.GOOS == "linux" && untilLargePage(all[slabBlocks-1][:]) != 0 {
		t.Error("the first buffer does not begin with a page")
	}
}
