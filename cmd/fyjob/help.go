package main

const helpText = `fyjob — tell Forgeyard about checkpoints, from inside a job

  fyjob ckpt should             is a checkpoint wanted now?  exit 0 yes, 1 no
  fyjob ckpt should-exit        should the program end after its checkpoint?  0 yes, 1 no
  fyjob ckpt begin              make an empty directory for a checkpoint and print it
  fyjob ckpt commit DIR         seal it and wait until the site has committed it
        --progress DONE[/TOTAL]   how far the work is
        --quiesced=false          the state was copied while it went on changing;
                                  without this, committing says that it did not
        --format NAME:VERSION     when it is not the one the job declares
  fyjob ckpt abort DIR          give a directory up that was not committed
  fyjob restore path            print the directory to resume from; exit 1: start fresh
  fyjob restore ok              the restored state was read and is good
  fyjob restore reject --reason TEXT
                                it is not; then exit with $FORGEYARD_CKPT_REJECT_CODE
  fyjob critical begin [--max 20s]
                                hold a stop back for that long at most; exit 1: one is
                                under way, do not start
  fyjob critical end
  fyjob progress DONE[/TOTAL] [--unit NAME]
                                a sign of life
  fyjob effect begin KEY --kind KIND --idem K
                                before something that cannot be undone (publish, deploy, a
                                webhook): wait until the site has written down that it is
                                meant. Perform it only after exit 0. Exit 8: it is done
                                already, the evidence is printed. Exit 9: it was begun
                                before in this epoch and has no outcome, say done or abort
                                first
  fyjob effect done KEY --evidence FILE
                                it was performed; the file, a receipt of at most 1024 bytes,
                                shows it
  fyjob effect abort KEY        it was certainly not performed
  fyjob cursor plan [--format list|go|pytest|cargo|nextest] [--binary FILE] [-- COMMAND...]
                                in mode framework: the list of tests, one a line, from
                                standard input or from what a command lists
  fyjob cursor next             print the tests that remain; exit 1: none does
  fyjob cursor start ID         a test begins
  fyjob cursor done ID --outcome pass|fail|skip|error [--evidence TEXT]
                                it has ended; returns when that is on the disk
  fyjob cursor run --format list|go|cargo|nextest [--report FILE] -- COMMAND...
                                run what remains: COMMAND ID for each test of the list,
                                "go test" with its flags and packages, or each test of
                                what "cargo test" builds or "cargo nextest list" lists
  fyjob cursor report [--to FILE]
                                every test with its result
  fyjob mark set NAME           $FORGEYARD_MARK of the next epoch; returns when the site
                                has it
  fyjob why                     print why the job is asked to stop; exit 1: it is not
  fyjob doctor                  check the surroundings; exit 1: something is wrong

A script that saves its state, and also runs where there is no Forgeyard:

  if from=$(fyjob restore path); then cp -R "$from/." state/ && fyjob restore ok; fi
  while work_is_left; do
    do_some
    if fyjob ckpt should; then
      d=$(fyjob ckpt begin) && cp -R state/. "$d" && fyjob ckpt commit "$d" --progress "$i/100"
      [ $? -eq 5 ] && exit 1
    fi
    fyjob ckpt should-exit && exit "$FORGEYARD_CKPT_EXIT_CODE"
  done

Exit codes: 0 done (commit: durable) · 1 no · 2 usage · 3 stored here, not committed yet ·
4 rejected or failed, the reason is on stderr · 5 stale: another epoch runs this job, stop
now · 6 not under Forgeyard · 7 a limit was hit · 8 the effect is done already · 9 it has
no outcome yet

After effect begin, 3 means: it is not known to be written down, so do not perform it.

Secrets must not be in a checkpoint: one that holds the value of a secret of the job is
rejected. docs/checkpoints.md explains the protocol.
`
