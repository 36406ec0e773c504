package watcher

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// slack is that of a thread; empty: the thread has ended.
func slack(t *testing.T, thread string) string {
	t.Helper()
	b, err := os.ReadFile(slackOf(thread))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// The threads that run goroutines sleep as long as they ask to.
func TestOnlyTheWatcherIsLate(t *testing.T) {
	needs.Root(t, "change another thread's timer slack")
	if runtime.GOMAXPROCS(0) == 1 {
		needs.Lacking(t, "two processors")
	}
	watcher, err := find()
	if err != nil {
		t.Fatal(err)
	}
	before := map[string]string{}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, th := range threads {
		before[th.Name()] = slack(t, th.Name())
	}
	w, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.set(late); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.set(usual); err != nil || slack(t, watcher) != before[watcher] {
			t.Errorf("afterwards it is %s: %v", slack(t, watcher), err)
		}
	}()
	if slack(t, watcher) == "" {
		t.Fatal("what was taken for the watcher has ended")
	}
	for thread, was := range before {
		want := was
		if thread == watcher {
			want = strconv.FormatInt(late.Nanoseconds(), 10)
		}
		if got := slack(t, thread); got != want && got != "" {
			t.Errorf("thread %s, the watcher is %s: %s ns, was %s", thread, watcher, got, was)
		}
	}
}

// A thread that sleeps in the same call is not taken for it.
func TestFindIsSure(t *testing.T) {
	stop, started := make(chan struct{}), make(chan int)
	defer close(stop)
	go func() {
		runtime.LockOSThread()
		started <- syscall.Gettid()
		for {
			select {
			case <-stop:
				return
			default:
				_ = syscall.Nanosleep(&syscall.Timespec{Nsec: 5e6}, nil) // a signal may cut it short
			}
		}
	}()
	sleeper := strconv.Itoa(<-started)
	if id, err := find(); err == nil && id == sleeper {
		t.Errorf("thread %s was taken for the watcher", id)
	}
	if first, err := second("/proc/self/task"); err != nil || first == sleeper {
		t.Errorf("the first thread that was made is %s: %v", first, err)
	}
}

func TestPick(t *testing.T) {
	for name, c := range map[string]struct {
		seen map[string]int
		want string
	}{
		"nobody":            {},
		"one":               {map[string]int{"7": looks}, "7"},
		"one now and then":  {map[string]int{"7": sure, "8": hardly}, "7"},
		"one, too seldom":   {seen: map[string]int{"7": sure - 1}},
		"another as well":   {seen: map[string]int{"7": looks, "8": hardly + 1}},
		"all for a moment":  {seen: map[string]int{"7": hardly, "8": hardly}},
		"two, and a moment": {seen: map[string]int{"7": looks, "8": looks, "9": 1}},
	} {
		if got, err := pick(c.seen); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
