. "$(dirname "$0")/lib.sh"
set +e
status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --steps 1 --out a
cp a/graph.yaml g1.yaml
status 0 "$gr" exec --resume a --steps 2; cat err; diff g1.yaml a/graph.yaml
status 0 "$gr" exec --resume a --steps 3; cat err
cat a/graph.yaml
