package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/site/provenance"
)

func (a *app) jobProvenance() *cobra.Command {
	var out, verify string
	c := a.Build(cli.Command{
		Use: "provenance ID", Short: "Say where a job's result comes from, signed by this node", Args: cobra.MaximumNArgs(1),
		Long: "Say where a job's result comes from: every execution of it, what each went on from and how it ended, the checkpoints, what was done outside, and the committed steps. " +
			"It is an in-toto statement in a DSSE envelope, signed with this node's key; with -o json the envelope is all that is printed, and --out writes it to a file. " +
			"--verify FILE says instead whether a member of the site signed the envelope in FILE, byte by byte, and whether the log contradicts it; with ID, whether it is about that job.",
		Example: "  forgeyard-node job provenance 7KQ2 --out 7KQ2.intoto.json\n  forgeyard-node job provenance --verify 7KQ2.intoto.json", Exits: []int{1, 2, 3, 4, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			switch {
			case len(args) == 0 && verify == "":
				return a.Usage("job provenance", "an ID or --verify FILE: one of them is needed")
			case verify != "" && out != "":
				return a.Usage("job provenance", "--verify and --out exclude each other")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			if verify != "" {
				return a.verifyProvenance(ctx, c, args, verify)
			}
			r, err := unary(ctx, c.job.Provenance, &forgeyardv1.ProvenanceRequest{JobId: args[0]})
			if err != nil {
				return err
			}
			if out != "" {
				if err := os.WriteFile(out, append(r.Envelope, '\n'), 0o644); err != nil {
					return forgeyard.E("job provenance", fileKind(err), err)
				}
			}
			return a.showProvenance(ctx, c, r.Envelope)
		},
	})
	c.Flags().StringVarP(&out, "out", "O", "", "file to write the envelope to")
	c.Flags().StringVar(&verify, "verify", "", "say whether this envelope is true")
	return c
}

func (a *app) showProvenance(ctx context.Context, c *client, envelope []byte) error {
	if a.JSON() {
		if _, err := a.Out.Write(append(envelope, '\n')); err != nil { // as it was signed, without an indent
			return forgeyard.E("job provenance", fileKind(err), err)
		}
		return nil
	}
	r, err := unary(ctx, c.job.JudgeProvenance, &forgeyardv1.JudgeProvenanceRequest{Envelope: envelope})
	if err != nil {
		return err
	}
	return a.Print(r, func(p *cli.Page) { provenancePage(p, r) })
}

// verifyProvenance has the site judge an envelope.
func (a *app) verifyProvenance(ctx context.Context, c *client, args []string, file string) error {
	raw, err := readBounded(file, provenance.MaxEnvelope)
	if err != nil {
		return err
	}
	r, err := unary(ctx, c.job.JudgeProvenance, &forgeyardv1.JudgeProvenanceRequest{Envelope: raw})
	if err != nil {
		return err
	}
	if len(args) > 0 && r.Trusted {
		j, err := unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: args[0]})
		if err != nil {
			return err
		}
		if j.JobId != r.JobId {
			r.Trusted, r.Why = false, "it is about job "+r.JobId+", not about "+j.JobId
		}
	}
	if err := a.Print(r, func(p *cli.Page) { provenancePage(p, r) }); err != nil {
		return err
	}
	if !r.Trusted {
		return forgeyard.Errorf("job provenance", forgeyard.Denied, "%s is not believed: %s", file, r.Why).WithHint("ask the site anew: forgeyard-node job provenance ID --out FILE")
	}
	return nil
}

// readBounded reads a small file that somebody else wrote.
func readBounded(file string, most int64) ([]byte, error) {
	st, err := os.Stat(file)
	if err == nil && st.Size() > most {
		return nil, forgeyard.Errorf("read", forgeyard.Invalid, "%s has %d bytes, the bound is %d", file, st.Size(), most)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, forgeyard.E("read", fileKind(err), err)
	}
	return raw, nil
}

func provenancePage(p *cli.Page, r *forgeyardv1.JudgeProvenanceResponse) {
	p.Fact("job", "%s", r.JobId)
	if r.Trusted {
		p.Fact("signed by", "%s, a member of the site", r.Signer)
		if r.Why != "" {
			p.Fact("not compared", "%s", r.Why)
		}
	} else {
		p.Fact("not believed", "%s", r.Why)
	}
	var st provenance.Statement
	if len(r.Statement) == 0 || json.NewDecoder(bytes.NewReader(r.Statement)).Decode(&st) != nil {
		return
	}
	m, c := st.Predicate.RunDetails.Metadata, st.Predicate.Chain
	p.Fact("status", "%s, as of entry %d of the log", m.Status, m.AsOf)
	p.Fact("interruptions", "%d", c.Interruptions)
	p.Head("executions", "EPOCH", "RUNNER", "FROM", "ENDED", "DETAIL")
	for _, e := range c.Epochs {
		p.Row(strconv.FormatUint(e.Epoch, 10), e.Runner, shortDigest(e.ResumedFrom), e.Ended, e.Detail)
	}
	p.Head("subject", "NAME", "DIGEST")
	for _, d := range st.Subject {
		p.Row(d.Name, "b3:"+d.Digest["blake3"])
	}
}
