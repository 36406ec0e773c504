package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/bench/party"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
)

const killedSize = 1 << 30

// killed brings 1 GiB, kills who brings it at a random byte, and tells how much of what that
// process had verified the next one does not bring again.
func (b *Bench) killed(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "killed-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	from := filepath.Join(dir, "from")
	if err := os.Mkdir(from, 0o700); err != nil {
		return err
	}
	holder, err := b.raise(ctx, "", party.Config{Kind: "ours", Dir: from, Listen: "127.0.0.1:0", Size: killedSize, Seed: 4})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, holder.end()) }()
	var reused []float64
	for i := range b.Rounds {
		c := party.Config{Kind: "ours", Dir: filepath.Join(dir, fmt.Sprint(i)), Listen: "127.0.0.1:0", From: []party.At{holder.at.At}, Ref: holder.at.Ref, Aloud: true}
		if err := os.Mkdir(c.Dir, 0o700); err != nil {
			return err
		}
		verified, err := b.killOne(ctx, c)
		if err != nil {
			return err
		}
		had, seconds, err := b.goesOn(ctx, c)
		if err != nil {
			return err
		}
		b.Say("1 GiB, killed when %d of %d blocks were verified: the next process has %d of them, and all %.2fs later; load %s", verified, killedBlocks, had, seconds, report.Load())
		reused = append(reused, 100*float64(had)/float64(verified))
		if err := os.RemoveAll(c.Dir); err != nil {
			return err
		}
	}
	b.Add(report.Measured("content.killed_fetch_reuses", report.Percent, 95, reused).AtLeast())
	return nil
}

const killedBlocks = killedSize / cas.BlockSize

// killOne kills a process that brings, somewhere within a block of which there are as many
// as it has told by then.
func (b *Bench) killOne(ctx context.Context, c party.Config) (verified int, err error) {
	taker, err := b.raise(ctx, "", c)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, taker.end()) }()
	if _, err := io.WriteString(taker.in, "bring\n"); err != nil {
		return 0, err
	}
	at := 1 + rand.IntN(killedBlocks*15/16) // nearer to its end it might be done first
	for {
		s, err := taker.hear()
		switch {
		case verified >= at && err != nil: // it is dead, and this was its last word
			return verified, nil
		case err != nil:
			return 0, err
		case s.Kept:
			verified++
		case s.Lacked == nil:
			return 0, errors.New("it was done before it could be killed")
		}
		if verified == at {
			time.Sleep(rand.N(2 * time.Millisecond))
			if err := taker.cmd.Process.Kill(); err != nil {
				return 0, err
			}
		}
	}
}

// goesOn brings the rest in a new process, and says how many blocks that did not have to.
func (b *Bench) goesOn(ctx context.Context, c party.Config) (had int, seconds float64, err error) {
	taker, err := b.raise(ctx, "", c)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, taker.end()) }()
	s, err := taker.ask("bring")
	for had = -1; err == nil; s, err = taker.hear() {
		switch {
		case s.Lacked != nil && had < 0:
			had = killedBlocks - *s.Lacked
		case s.Lacked == nil && !s.Kept:
			return had, s.Seconds, nil
		}
	}
	return 0, 0, err
}
