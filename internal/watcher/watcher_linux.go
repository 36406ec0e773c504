package watcher

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// setter sets the watcher's slack. It takes CAP_SYS_NICE.
func setter() (func(time.Duration) error, error) {
	if runtime.GOMAXPROCS(0) == 1 {
		return nil, errors.ErrUnsupported
	}
	id, err := find()
	if err != nil {
		return nil, err
	}
	set := func(d time.Duration) error {
		return os.WriteFile(slackOf(id), []byte(strconv.FormatInt(d.Nanoseconds(), 10)), 0)
	}
	return set, set(usual)
}

func slackOf(thread string) string { return "/proc/" + thread + "/timerslack_ns" }

// Bounds of a search: a few milliseconds. On a machine that is busy with other things the
// watcher waits for a processor more often than it sleeps, so a quarter is enough, and
// another thread may hardly be seen.
const (
	looks  = 64
	sure   = looks / 4
	hardly = looks / 16
	tries  = 8
)

var errNotFound = errors.New("no thread sleeps as the runtime's watcher does")

// find finds the watcher's thread by what it does: while this goroutine runs, it is in
// nanosleep nearly always, and no other thread is for more than a moment. It is the first
// that the runtime makes as well.
func find() (id string, err error) {
	first, err := second("/proc/self/task")
	if err != nil {
		return "", err
	}
	for range tries {
		seen := map[string]int{}
		for range looks {
			if err := look(seen); err != nil {
				return "", err
			}
		}
		if id, err = pick(seen); err == nil && id == first {
			return id, nil
		}
	}
	return "", errors.Join(err, errNotFound)
}

// second is the thread whose number follows that of the main one. The system numbers them
// in their order, but where it begins anew; then nothing is found.
func second(threads string) (string, error) {
	all, err := os.ReadDir(threads)
	if err != nil {
		return "", err
	}
	var ids []int
	for _, t := range all {
		n, err := strconv.Atoi(t.Name())
		if err != nil {
			return "", err
		}
		ids = append(ids, n)
	}
	slices.Sort(ids)
	if len(ids) < 2 || ids[0] != os.Getpid() {
		return "", errNotFound
	}
	return strconv.Itoa(ids[1]), nil
}

func pick(seen map[string]int) (found string, err error) {
	for thread, n := range seen {
		switch {
		case n <= hardly:
		case found != "":
			return "", fmt.Errorf("%w: threads %s and %s both do", errNotFound, found, thread)
		case n < sure:
			return "", fmt.Errorf("%w: thread %s was seen asleep %d times in %d", errNotFound, thread, n, looks)
		default:
			found = thread
		}
	}
	if found == "" {
		return "", errNotFound
	}
	return found, nil
}

// look counts the threads that are in nanosleep now.
func look(seen map[string]int) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	asleep := strconv.Itoa(syscall.SYS_NANOSLEEP) + " "
	for _, t := range threads {
		b, err := os.ReadFile("/proc/self/task/" + t.Name() + "/syscall")
		if err == nil && strings.HasPrefix(string(b), asleep) {
			seen[t.Name()]++
		}
	}
	return nil
}
