package main

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/bench/rpc"
)

func TestResult(t *testing.T) {
	for _, c := range []struct {
		r    result
		want string
	}{
		{measured("a", inMillis, 0.1, []float64{0.09, 0.05, 0.3}), "RATIO a 90ms 50ms 300ms goal <=100ms ok"},
		{measured("b", inMillis, 3, []float64{3.1, 3.2, 1}), "RATIO b 3.1s 1s 3.2s goal <=3s short"},
		{measured("c", inMiB, 120<<20, []float64{100 << 20}), "RATIO c 100.0MiB 100.0MiB 100.0MiB goal <=120.0MiB ok"},
		{measured("e", inCount, 100, []float64{99}).atLeast(), "RATIO e 99 99 99 goal >=100 short"},
		{measured("f", inCount, 100, []float64{100}).atLeast(), "RATIO f 100 100 100 goal >=100 ok"},
		{measured("g", inCount, 100, []float64{101}).atLeast(), "RATIO g 101 101 101 goal >=100 ok"},
		{measured("d", inPercent, 1, nil), "RATIO d - - - goal <=1.00% absent: nothing was measured"},
	} {
		if got := c.r.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestFiguresOf(t *testing.T) {
	var took []float64
	for i := range 200 {
		took = append(took, float64(200-i))
	}
	if f := figuresOf(took, 2*time.Second); f != (figures{Rate: 100, P50: 101, P99: 199}) {
		t.Errorf("%+v", f)
	}
}

func TestEachOfGivesEachOnce(t *testing.T) {
	var sum atomic.Int64
	if err := rpc.Each(7, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, func(n int) error { sum.Add(int64(n)); return nil }); err != nil || sum.Load() != 55 {
		t.Errorf("%d %v", sum.Load(), err)
	}
	if err := rpc.Each(2, []int{1}, func(int) error { return errors.New("no") }); err == nil {
		t.Error("an error is lost")
	}
}

func TestParseCost(t *testing.T) {
	status := "Name:\tx y\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n"
	stat := "7 (x) y) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 9 0 1 1 1"
	c, err := parseCost(status, "7 (x y) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 9 0 1 1 1")
	if err != nil || c.rss != 1<<20 || c.peak != 2<<20 || c.cpu != 2*time.Second {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := parseCost("", stat); err == nil {
		t.Error("a process without memory was measured")
	}
	if _, err := parseCost(status, "7 (x"); err == nil {
		t.Error("a cut line was measured")
	}
}

func TestEchoSpec(t *testing.T) {
	if b, err := echoSpec(); err != nil || len(b) == 0 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
