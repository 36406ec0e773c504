// Package content measures what a site does with content: between real processes on this
// machine, and on its disk. Each figure stands beside that of a named peer, in turns in the
// same run.
package content

import (
	"context"
	"fmt"

	"github.com/forgeyard/forgeyard-node/internal/bench/report"
)

// Bench is one run.
type Bench struct {
	*report.Sheet
	Rounds  int    // of each measure
	Objects int    // of the large store
	Part    string // the one measure that is wanted; empty: all of the suite
}

// Content measures what travels between processes.
func (b *Bench) Content(ctx context.Context) error {
	return b.parts(ctx, part{"blob", b.oneBlob}, part{"small", b.smallFiles}, part{"swarm", b.swarms}, part{"faults", b.faults}, part{"killed", b.killed})
}

// Store measures a store on this machine's disk.
func (b *Bench) Store(ctx context.Context) error {
	return b.parts(ctx, part{"index", b.largeIndex}, part{"put", b.putBlob}, part{"stage", b.stage}, part{"layers", b.layers}, part{"hash", b.hashes})
}

// part is one measure of a suite.
type part struct {
	name string
	run  func(context.Context) error
}

// parts runs those of a suite that are wanted.
func (b *Bench) parts(ctx context.Context, all ...part) error {
	known := b.Part == ""
	for _, p := range all {
		if b.Part != "" && b.Part != p.name {
			continue
		}
		known = true
		if err := p.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if !known {
		return fmt.Errorf("there is no part %q", b.Part)
	}
	return nil
}
