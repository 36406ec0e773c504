package main

import (
	"context"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
)

func (c *cli) site() *cobra.Command {
	cmd := group(&cobra.Command{Use: "site", Short: "Enrolled sites"})
	cmd.AddCommand(&cobra.Command{
		Use: "list", Short: "List the enrolled sites", Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.sites(cmd.Context())
			if err != nil {
				return err
			}
			return list(c, all, func(w io.Writer) {
				line(w, "NAME", "SITE", "STATE", "LAST CONTACT", "RECORDS", "DELEGATED", "OPEN")
				for _, s := range all {
					line(w, s.Name, s.SiteId, orDash(s.GetConnectivity().GetState()), when(s.LastContact), s.Records, s.Delegated, s.JobsOpen)
				}
			})
		},
	}, &cobra.Command{
		Use: "show SITE", Short: "Show one site, by name or id", Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := c.sites(cmd.Context())
			if err != nil {
				return err
			}
			s, err := pick(all, args[0])
			if err != nil {
				return err
			}
			return c.show(s, func(w io.Writer) { siteText(w, s) })
		},
	})
	return cmd
}

func (c *cli) sites(ctx context.Context) ([]*v1.CentralSite, error) {
	cl, err := c.client()
	if err != nil {
		return nil, err
	}
	r, err := cl.ListSites(ctx, connect.NewRequest(&v1.ListSitesRequest{}))
	if err != nil {
		return nil, err
	}
	return r.Msg.Sites, nil
}

func pick(all []*v1.CentralSite, name string) (*v1.CentralSite, error) {
	var found *v1.CentralSite
	for _, s := range all {
		if s.SiteId == name {
			return s, nil
		}
		if s.Name != name {
			continue
		}
		if found != nil {
			return nil, forgeyard.Errorf("site show", forgeyard.Conflict, "several sites have the name %q", name).WithHint("give the id: forgeyard-central site list")
		}
		found = s
	}
	if found == nil {
		return nil, forgeyard.Errorf("site show", forgeyard.NotFound, "%q is neither the id nor the name of an enrolled site", forgeyard.Clip(name, 64)).WithHint("forgeyard-central site list")
	}
	return found, nil
}

func siteText(w io.Writer, s *v1.CentralSite) {
	line(w, "name", s.Name)
	line(w, "site", s.SiteId)
	line(w, "enrolled", when(s.Enrolled))
	line(w, "last contact", when(s.LastContact)+" from "+orDash(s.PeerId))
	if k := s.Connectivity; k != nil {
		line(w, "said of itself", k.State+", "+k.Used.AsDuration().String()+" of "+k.Allowance.AsDuration().String()+" used "+k.Doubt)
	}
	if k := s.Connectivity; k.GetReadiness() != "" {
		line(w, "could go on alone", k.Readiness+" since "+when(k.ReadinessSince))
		for _, f := range k.Shortfalls {
			line(w, "", strings.TrimPrefix(f.Node+": "+f.What+": "+f.Detail, ": "))
		}
	}
	line(w, "terms", "silent after "+s.Terms.SilentAfter.AsDuration().String()+", grace "+s.Terms.Grace.AsDuration().String()+", offline for "+s.Terms.Allowance.AsDuration().String())
	line(w, "records taken", s.Records)
	line(w, "delegations", s.Delegated, "taken in", s.Cursor)
	line(w, "jobs without outcome", s.JobsOpen)
	line(w, "objects on their way", s.ObjectsPending)
	line(w, "objects at", orDash(strings.Join(s.Holders, " ")))
}
