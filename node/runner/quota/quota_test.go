package quota

import (
	"testing"
	"time"
)

// RA-133: where it went is told part by part.
func TestOver(t *testing.T) {
	l := Of(1 << 20)
	if l != (Limits{1 << 20, leastFiles}) || Of(0) != (Limits{}) || Of(1<<40).Files != 1<<28 {
		t.Errorf("%+v", l)
	}
	for _, c := range []struct {
		u    Usage
		want string
	}{
		{Usage{Inputs: 1 << 19, Work: 1 << 19, Files: leastFiles}, ""},
		{Usage{Inputs: 1 << 20, Work: own}, ""},
		{Usage{Inputs: 1 << 20, Work: own + 1}, "uses 1114113 bytes of disk, and asked for 1048576: inputs 1048576, work 65537"},
		{Usage{Work: 900_000, Deleted: 800_000, Checkpoints: 100_000, Log: 200_000}, "uses 1200000 bytes of disk, and asked for 1048576: inputs 0, work 900000, of that deleted and open 800000, checkpoints 100000, log 200000"},
		{Usage{Work: 5, Files: leastFiles + 1}, "has 65537 files, and 65536 come with the disk that it asked for: inputs 0, work 5"},
	} {
		if got := l.Over(c.u); got != c.want {
			t.Errorf("%+v: %q", c.u, got)
		}
	}
	if got := (Limits{}).Over(Usage{Work: 1 << 60, Files: 1 << 40}); got != "" {
		t.Errorf("no limit: %q", got)
	}
}

func TestPace(t *testing.T) {
	var p Pace
	at := func(bytes, files int64, since time.Duration) bool { return p.Due(Free{bytes, files}, since) }
	if !at(1000, 1000, 0) || !p.DueAtEnd(Free{1000, 1000}) {
		t.Error("what was never counted is not due")
	}
	p.Counted(Usage{Work: 60, Files: 10}, Limits{100, 50}, Free{1000, 1000}, 20*time.Millisecond)
	for _, c := range []struct {
		bytes, files int64
		since        time.Duration
		want         bool
	}{
		{900, 900, 100 * time.Millisecond, false}, // counting just now cost a fifth of that
		{990, 1000, 300 * time.Millisecond, false},
		{980, 1000, 0, false}, // half of the 40 that are left, and not more
		{979, 1000, 0, true},
		{1000, 979, 0, true},
		{2000, 1000, time.Second, false},
		{2000, 1000, 4 * time.Second, true},
	} {
		if got := at(c.bytes, c.files, c.since); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if p.DueAtEnd(Free{980, 1000}) || !p.DueAtEnd(Free{979, 1000}) {
		t.Error("at the end")
	}
	p.Counted(Usage{Work: 60, Files: 10}, Limits{100, 50}, Free{1000, 1000}, 9*time.Millisecond)
	if !p.DueAtEnd(Free{2000, 1000}) { // others freed more than this one took
		t.Error("at the end, where counting costs nothing")
	}
}
