package simulation

// nothingLost is nothing-lost: what was acknowledged to a client is in the state of
// every node, after any crash of some and any restart of all.
type nothingLost struct{ silent }

func (nothingLost) end(s *sim) {
	for _, n := range s.nodes {
		if n.gone {
			continue
		}
		for _, v := range s.client.acked {
			j, ok := n.state().Jobs.Get(v.Job)
			if !ok || j.Run != v.Run || !j.Status.Terminal() {
				s.fail("nothing-lost", "job %s was acknowledged and is not in the state of %s", v.Job, n.name)
			}
		}
	}
}
