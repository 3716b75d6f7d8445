"""GPflow's SGPR by SciPy's L-BFGS, in its own environment: `python gpflow_ml2.py FILE.npz` prints one JSON line."""

import json
import sys
import time

import gpflow
import numpy as np


def main() -> None:
    given = np.load(sys.argv[1])
    kernel = gpflow.kernels.SquaredExponential(variance=float(given["scale"]) ** 2, lengthscales=given["lengthscale"])
    likelihood = gpflow.likelihoods.Gaussian(variance=float(given["noise"]) ** 2)
    data = given["X"], given["y"][:, None]
    model = gpflow.models.SGPR(data, kernel, given["Z"].copy(), likelihood=likelihood)
    start, began = -float(model.training_loss()), time.process_time()
    optimum = gpflow.optimizers.Scipy().minimize(
        model.training_loss_closure(), model.trainable_variables, options={"maxiter": int(given["steps"])}
    )
    row = {"seconds": time.process_time() - began, "start": start, "bound": -float(optimum.fun)}
    row |= {"gradients": int(optimum.nfev), "steps": int(optimum.nit), "stopped": str(optimum.message)}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
