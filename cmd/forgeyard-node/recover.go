package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/durable"
	"github.com/forgeyard/forgeyard-node/node"
	"github.com/forgeyard/forgeyard-node/site/backup"
)

// backupFacts is what backup and restore say about a file.
type backupFacts struct {
	File        string `json:"file"`
	Bytes       int64  `json:"bytes"`
	Site        string `json:"site"`
	SiteID      string `json:"site_id"`
	Index       uint64 `json:"index"`
	Term        uint64 `json:"term"`
	Incarnation uint64 `json:"incarnation"`
	At          string `json:"at"`
	Hash        string `json:"hash"`
}

func factsOf(name string, size int, h backup.Header) backupFacts {
	return backupFacts{File: name, Bytes: int64(size), Site: h.Name, SiteID: string(h.Site), Index: h.Index, Term: h.Term, Incarnation: h.Incarnation,
		At: h.At.Time().UTC().Format("2006-01-02T15:04:05.000Z"), Hash: h.Hash.String()}
}

func (a *app) siteBackup() *cobra.Command {
	return a.Build(cli.Command{
		Use: "backup FILE", Short: "Write the site's replicated state to a file", Args: cobra.ExactArgs(1),
		Long: "Write the site's whole replicated state to a file, as of a read that a majority of voters vouches for. The file holds no key, and the content store is not in it. " +
			"FILE is replaced only when the new one is complete and on the disk.",
		Example: "  forgeyard-node site backup /backup/lab.fybk\n  forgeyard-node site backup /backup/lab.fybk -o json | jq .index", Exits: []int{1, 2, 5, 7, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			b, err := a.fetchBackup(ctx, c)
			if err != nil {
				return err
			}
			h, _, err := backup.Split(b)
			if err != nil {
				return err
			}
			if err := durable.WriteFile(args[0], b, 0o600); err != nil {
				if durable.Full(err) {
					return forgeyard.E("backup", forgeyard.NoSpace, err).WithHint("%d bytes are needed beside the old file", len(b))
				}
				return forgeyard.E("backup", fileKind(err), err)
			}
			f := factsOf(args[0], len(b), h)
			return a.PrintValue(f, func(p *cli.Page) {
				p.Line("%s: %s of site %s, up to log index %d, incarnation %d", f.File, cli.Size(f.Bytes), f.Site, f.Index, f.Incarnation)
			})
		},
	})
}

func (a *app) fetchBackup(ctx context.Context, c *client) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, bulkTimeout)
	defer cancel()
	s, err := c.site.Backup(ctx, connect.NewRequest(&forgeyardv1.BackupRequest{}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // it was only read
	bar := a.NewProgress("backup", 0)
	defer bar.Close()
	var b []byte
	for s.Receive() {
		m := s.Msg()
		if m.Total > 0 {
			bar.SetTotal(m.Total)
		}
		b = append(b, m.Data...)
		bar.Add(int64(len(m.Data)))
		if len(b) > backup.MaxBytes {
			return nil, forgeyard.Errorf("backup", forgeyard.Limit, "it is over %d bytes", int64(backup.MaxBytes))
		}
	}
	return b, s.Err()
}

// restoredFacts is what restore prints.
type restoredFacts struct {
	Backup      backupFacts `json:"backup"`
	Incarnation uint64      `json:"incarnation"`
	NewKey      bool        `json:"new_key"`
	Node        enrolled    `json:"node"`
	Aside       string      `json:"old_log"`
	Leases      int         `json:"fenced_leases"`
	Devices     int         `json:"fenced_device_leases"`
	Tokens      int         `json:"revoked_tokens"`
	Held        int         `json:"held_jobs"`
	Members     int         `json:"members_to_join_again"`
}

func (a *app) siteRestore() *cobra.Command {
	var name string
	var incarnation uint64
	var replace bool
	c := a.Build(cli.Command{
		Use: "restore FILE", Short: "Make a site of this node from a backup", Args: cobra.ExactArgs(1),
		Long: "Make a site of this node from a backup. No daemon may use the data dir; the next `forgeyard-node up` begins a new incarnation of the site with this node as its only voter. " +
			"What was granted after the backup was made, or is still held from before, is fenced.\n\n" +
			"In the data dir of a node that may vote, the site keeps its key and its members. In an empty one the site gets a new key: every other node must join again, and the uplink needs a new ticket. " +
			"If the site was recovered after the backup was made, say so with --incarnation: one more than the last.",
		Example: "  forgeyard-node site restore /backup/lab.fybk\n  forgeyard-node site restore /backup/lab.fybk --data-dir /var/lib/new --name n1 --incarnation 4", Exits: []int{1, 2, 3, 4, 6, 7},
		Run: func(_ context.Context, args []string) error {
			b, err := readBackup(args[0])
			if err != nil {
				return err
			}
			if name == "" {
				if name, err = os.Hostname(); err != nil {
					return forgeyard.E("restore", forgeyard.Other, err)
				}
			}
			r, err := node.Restore(node.RestoreRequest{DataDir: a.dir(), NodeName: name, File: b, Incarnation: incarnation, Replace: replace, By: "operator", Clock: clock.System()})
			if err != nil {
				return err
			}
			a.Note("start it with: %s", a.commandLine("up"))
			return a.printRestored(args[0], len(b), r)
		},
	})
	f := c.Flags()
	f.StringVar(&name, "name", "", "what people call this node, where the data dir is empty (default: the host's name)")
	f.Uint64Var(&incarnation, "incarnation", 0, "begin at least this one (default: one more than the backup and this data dir know)")
	f.BoolVar(&replace, "replace", false, "set a log that is there aside")
	return c
}

func readBackup(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, forgeyard.E("restore", fileKind(err), err)
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, backup.MaxBytes+1))
	if err == nil && len(b) > backup.MaxBytes {
		err = forgeyard.Errorf("restore", forgeyard.Limit, "%s is over %d bytes", name, int64(backup.MaxBytes))
	}
	return b, err
}

func (a *app) printRestored(file string, size int, r node.Restored) error {
	e := r.Enrolled
	v := restoredFacts{
		Backup: factsOf(file, size, r.Backup), Incarnation: r.Incarnation, NewKey: r.NewKey, Aside: r.Aside,
		Node:   enrolled{SiteID: string(e.Site), Site: e.SiteName, RunnerID: string(e.Runner), Name: e.Name, DataDir: a.dir(), Existed: e.Already},
		Leases: r.Fenced.Leases, Devices: r.Fenced.Devices, Tokens: r.Fenced.Tokens, Held: r.Fenced.Held, Members: r.Fenced.Members,
	}
	return a.PrintValue(v, func(p *cli.Page) {
		p.Fact("site", "%s (%s), from a backup of %s, log index %d", v.Backup.Site, v.Backup.SiteID, v.Backup.At, v.Backup.Index)
		p.Fact("incarnation", "%d follows %d", v.Incarnation, v.Backup.Incarnation)
		p.Fact("node", "%s is the only voter", v.Node.Name)
		fenced(p, int64(v.Leases), int64(v.Devices), int64(v.Tokens), int64(v.Held))
		if v.NewKey {
			p.Fact("members", "%d must join again: the site has a new key; the uplink needs a new ticket", v.Members)
		} else {
			p.Fact("members", "keep their credentials; one that was removed after the backup must be removed again")
		}
		if v.Aside != "" {
			p.Fact("old log", "%s", v.Aside)
		}
	})
}

func fenced(p *cli.Page, leases, devices, tokens, held int64) {
	p.Fact("fenced", "%d job leases, %d device leases, %d join tokens, and all that was granted where this node did not hear of it", leases, devices, tokens)
	if held > 0 {
		p.Fact("held", "%s with protected effects until nobody can act any more", plural(int(held), "job"))
	}
}

func (a *app) siteRecover() *cobra.Command {
	var force bool
	c := a.Build(cli.Command{
		Use: "recover --force", Short: "Go on with this node alone after the quorum was lost for good",
		Long: "Go on with this node as the only voter, after a majority of the voters was lost for good. The site's incarnation grows: all leases of before are dead, join tokens are revoked, " +
			"and what the lost voters decided without this node hearing of it is lost. The others must not come back with their logs; if they do, they are told to end and to rejoin.\n\n" +
			"It is refused while a leader is heard, a majority answers, or another node that is left has a newer log. Without --force it says what it would do.",
		Example: "  forgeyard-node site recover\n  forgeyard-node site recover --force", Exits: []int{1, 2, 4, 5, 6, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.site.Recover, &forgeyardv1.RecoverRequest{Force: force})
			if err != nil {
				return err
			}
			err = a.Print(r, func(p *cli.Page) { recovered(p, r) })
			if !force {
				return errors.Join(err, a.Usage("site recover", "nothing was done: --force carries it out"))
			}
			return err
		},
	})
	c.Flags().BoolVar(&force, "force", false, "carry it out")
	return c
}

func recovered(p *cli.Page, r *forgeyardv1.RecoverResponse) {
	p.Fact("incarnation", "%d follows %d", r.Incarnation, r.Previous)
	last := "nothing is known of when"
	if r.LastEntry != nil {
		last = "something last happened " + cli.At(r.LastEntry)
	}
	p.Fact("goes on from", "log index %d, %s; what was decided after it is lost", r.FromIndex, last)
	for _, v := range r.LostVoters {
		p.Fact("given up", "%s: if it comes back, run there: forgeyard-node site rejoin", v)
	}
	fenced(p, r.Leases, r.DeviceLeases, r.Tokens, r.Held)
}

func (a *app) siteRejoin() *cobra.Command {
	var force bool
	c := a.Build(cli.Command{
		Use: "rejoin", Short: "Give up this node's log and enter the site as it is now",
		Long: "Give up this node's log, which belongs to an incarnation of the site that ended, and enter the site as it is now with the next `forgeyard-node up`. " +
			"The node keeps its name, its key and its content; the old log is set aside. No daemon may use the data dir.",
		Example: "  forgeyard-node site rejoin && forgeyard-node up", Exits: []int{1, 2, 3, 4, 6},
		Run: func(context.Context, []string) error {
			aside, e, err := node.Rejoin(a.dir(), force, clock.System())
			if err != nil {
				return err
			}
			a.Note("start it with: %s", a.commandLine("up"))
			v := map[string]string{"name": e.Name, "runner_id": string(e.Runner), "old_log": filepath.Clean(aside)}
			return a.PrintValue(v, func(p *cli.Page) { p.Line("%s begins anew; its old log is %s", e.Name, aside) })
		},
	})
	c.Flags().BoolVar(&force, "force", false, "also if this node was not told that its incarnation ended")
	return c
}
