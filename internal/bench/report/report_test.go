package report

import (
	"testing"
	"time"
)

func TestResult(t *testing.T) {
	for _, c := range []struct {
		r    Result
		want string
	}{
		{Measured("a", Millis, 0.1, []float64{0.09, 0.05, 0.3}), "RATIO a 90ms 50ms 300ms goal <=100ms ok"},
		{Measured("b", Millis, 3, []float64{3.1, 3.2, 1}), "RATIO b 3.1s 1s 3.2s goal <=3s short"},
		{Measured("c", MiB, 120<<20, []float64{100 << 20}), "RATIO c 100.0MiB 100.0MiB 100.0MiB goal <=120.0MiB ok"},
		{Measured("e", Count, 100, []float64{99}).AtLeast(), "RATIO e 99 99 99 goal >=100 short"},
		{Measured("f", Count, 100, []float64{100}).AtLeast(), "RATIO f 100 100 100 goal >=100 ok"},
		{Measured("g", Count, 100, []float64{101}).AtLeast(), "RATIO g 101 101 101 goal >=100 ok"},
		{Measured("d", Percent, 1, nil), "RATIO d - - - goal <=1.00% absent: nothing was measured"},
	} {
		if got := c.r.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestParseCost(t *testing.T) {
	status := "Name:\tx y\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n"
	stat := "7 (x) y) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 9 0 1 1 1"
	c, err := parseCost(status, "7 (x y) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 9 0 1 1 1")
	if err != nil || c.RSS != 1<<20 || c.Peak != 2<<20 || c.CPU != 2*time.Second {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := parseCost("", stat); err == nil {
		t.Error("a process without memory was measured")
	}
	if _, err := parseCost(status, "7 (x"); err == nil {
		t.Error("a cut line was measured")
	}
}
