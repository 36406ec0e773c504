package control

import (
	"context"

	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/site"
)

// health judges checkpoints by what the log shows and what this node finds wrong with its store.
func (s checkpointService) health(ctx context.Context, st *site.State, faults []site.CheckpointFault) (checkpoint.Health, []string) {
	var signs checkpoint.Signs
	for _, c := range s.n.Doctor(ctx).GetHealth().GetChecks() {
		switch c.Name {
		case "disk", "store", "scrub":
			if c.Status != "ok" {
				signs.Store = append(signs.Store, c.Name+" of this node: "+c.Detail)
			}
			signs.StoreFails = signs.StoreFails || c.Status == "fail"
		}
	}
	for _, f := range faults {
		switch f.What {
		case site.FaultChain, site.FaultRevoked:
			signs.Broken++
		case site.FaultLoop:
			signs.Loops++
		}
	}
	for id := range st.Open.All() {
		j, _ := st.Jobs.Get(id)
		for _, c := range j.Checkpoints {
			switch {
			case c.State == checkpoint.Quarantined:
				signs.Quarantined++
			case c.State == checkpoint.Good && c.Failures > 0:
				signs.Failing++
			}
		}
	}
	return signs.Health()
}
