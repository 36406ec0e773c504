package main

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/bench/rpc"
)

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

func TestEchoSpec(t *testing.T) {
	if b, err := echoSpec(); err != nil || len(b) == 0 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// What the suite runner submits are jobs that a node takes, and its submitters do all that
// they are to do.
func TestRunnerJobs(t *testing.T) {
	for _, text := range []string{trueJob, smallTrue, smallJob(`{run: ["true"]}`, "1", "1GiB", "  inputs: [{path: source, tree: true, digest: \"b3:"+strings.Repeat("ab", 32)+"\"}]\n")} {
		if b, err := specOf(text); err != nil || len(b) == 0 {
			t.Errorf("%s: %v", text, err)
		}
	}
	var n atomic.Int64
	if rate, err := inParallel(func() error { n.Add(1); return nil }); err != nil || rate <= 0 || n.Load() != submitters*perSubmitter {
		t.Errorf("%d jobs at %f a second: %v", n.Load(), rate, err)
	}
	if _, err := inParallel(func() error { return errors.New("no") }); err == nil {
		t.Error("an error is lost")
	}
}
