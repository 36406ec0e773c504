package main

import (
	"errors"
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
