package disk

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Evict makes room when the store is above its high mark, down to the low one: what was
// used longest ago goes first, of samples that are drawn at random places, so that its
// cost does not grow with the store. What a pin, a hold, a promise or a write in flight
// needs is never touched, readers are never stopped, and of two generations only the one
// that was seen goes.
//
//	limit    above 90 % of it, down to 80 %
//	disk     with less than twice the reserve free, until three times is
//
// Below the marks it does nothing.
func (s *Store) Evict(ctx context.Context) (cas.GCReport, error) {
	const op = "cas evict"
	want, err := s.aboveMark()
	if err != nil || want <= 0 {
		return cas.GCReport{}, s.fail(op, err)
	}
	leave, err := s.enter(op)
	if err != nil {
		return cas.GCReport{}, err
	}
	defer leave()
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	if err := s.saveUsed(); err != nil {
		return cas.GCReport{}, s.fail(op, err)
	}
	c, err := s.newCollection(false, goneEvicted)
	if err != nil {
		return cas.GCReport{}, err
	}
	if err := c.takePins(ctx, func() error { return nil }); err != nil {
		return c.report, s.fail(op, err)
	}
	if err := c.evict(ctx, want); err != nil {
		return c.report, s.fail(op, err)
	}
	s.fillBallast()
	return c.report, nil
}

// aboveMark gives how many bytes must go.
func (s *Store) aboveMark() (int64, error) {
	d, err := diskFree(s.cfg.Dir)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var want int64
	if l := s.cfg.Limit; l > 0 && s.space.used > l/100*highMark {
		want = s.space.used - l/100*lowMark
	}
	if r := s.space.reserve; d.free < 2*r {
		want = max(want, 3*r-d.free)
	}
	return want, nil
}

// evict draws samples until enough went, or until several in a row gave nothing.
func (c *collection) evict(ctx context.Context, want int64) error {
	for dry := 0; c.report.Freed < want && dry < dryDraws; {
		if err := ctx.Err(); err != nil {
			return err
		}
		page, err := c.draw()
		if err != nil {
			return err
		}
		before := c.report.Freed
		if len(page) > 0 {
			if err := c.takePins(ctx, func() error { return c.remove(page) }); err != nil {
				return err
			}
		}
		if dry++; c.report.Freed > before {
			dry = 0
		}
	}
	return nil
}

// draw gives the oldest of what nothing keeps at a random place.
func (c *collection) draw() ([]victim, error) {
	var at forgeyard.Digest
	for i := range at {
		at[i] = byte(rand.Uint32())
	}
	page, last, err := c.page(at[:])
	if err != nil {
		return nil, err
	}
	if last == nil { // the end was near: go on from the beginning
		more, _, err := c.page(nil)
		if err != nil {
			return nil, err
		}
		for _, v := range more {
			if !slices.ContainsFunc(page, func(w victim) bool { return w.digest == v.digest }) {
				page = append(page, v)
			}
		}
	}
	slices.SortFunc(page, func(a, b victim) int { return int(a.rec.Used - b.rec.Used) })
	return page[:(len(page)+3)/4], nil
}
